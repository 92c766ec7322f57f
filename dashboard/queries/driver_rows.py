"""Many rows of a few plain columns: making SQLAlchemy's rows of them takes as long as reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


def driver_rows(connection: sa.Connection, query: sa.Select[Any]) -> Sequence[tuple[Any, ...]]:
    """What the driver gives for a query, without SQLAlchemy's conversions: SQLite's times stay texts."""
    cursor = connection.execute(query).cursor
    return [] if cursor is None else cursor.fetchall()
