"""The cookbook's questions and the store's tables, as docs/make_sql_reference.py wrote them into the assets."""

from __future__ import annotations

import json
import pathlib
from typing import Any

_FILE = pathlib.Path(__file__).parents[2] / "assets" / "sql-reference.json"


def read_reference() -> dict[str, Any]:
    """`questions` and `tables`; see docs/make_sql_reference.py."""
    found: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found
