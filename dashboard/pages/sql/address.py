"""What the SQL page's address says: the statement, how many rows, and how the answer is shown."""

from __future__ import annotations

import dataclasses
import re

from dashboard.figures.sql import KINDS
from dashboard.routing import first

ROWS = ("100", "1000", "10000")
VIEWS = ("table", "chart")
LONGEST_STATEMENT = 20_000
MOST_SERIES = 4
_COLUMN = re.compile(r"[0-9]{1,3}", flags=re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """`x` and `y` are columns of the answer, by number from 0, as text; None, () and no `kind` leave it to the page."""

    statement: str
    rows: str
    view: str
    x: str | None
    y: tuple[str, ...]
    kind: str


def read_address(search: str) -> Shown:
    """What an address asks for; what cannot be read of it is as if it were not there."""
    statement = (first(search, "q") or "").replace("\0", "")[:LONGEST_STATEMENT]
    columns = [name for name in (first(search, "y") or "").split(",") if _COLUMN.fullmatch(name)]
    x = first(search, "x")
    return Shown(
        statement=statement,
        rows=_one_of(first(search, "rows"), ROWS, "1000"),
        view=_one_of(first(search, "view"), VIEWS, "table"),
        x=x if x and _COLUMN.fullmatch(x) else None,
        y=tuple(columns[:MOST_SERIES]),
        kind=_one_of(first(search, "kind"), KINDS, ""),
    )


def _one_of(value: str | None, offered: tuple[str, ...], otherwise: str) -> str:
    return value if value in offered else otherwise
