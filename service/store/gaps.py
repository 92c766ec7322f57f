"""What the trace lacks, as far as it is known."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa

from service.store.engines import read_transaction
from service.store.tables import trace_gaps


def count_gaps_since(store: sa.Engine, since: dt.datetime) -> int:
    """Rows of trace_gaps that were noticed after `since`. Raises StoreError."""
    with read_transaction(store) as connection:
        query = sa.select(sa.func.count()).select_from(trace_gaps).where(trace_gaps.c.noticed_at > since)
        return int(connection.execute(query).scalar_one())
