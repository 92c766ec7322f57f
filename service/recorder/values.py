"""What a row holds where the two databases are handed different things: times, NULL and JSON.

Everything else in a row is the same for both: exact int, float and str, flags as 0 and 1. What Python's drivers do
with other types costs more than the insert itself: sqlite3 looks for an adapter each time that it meets None or a bool.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import msgspec

_EPOCH = dt.datetime(1970, 1, 1)
_SECOND_US = 1_000_000
_YEAR_2000_S = 946_684_800
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799
"""Years 1 to 9999, which a Python datetime, and so every reader of a row, can hold."""


@dataclasses.dataclass(frozen=True, slots=True)
class Values:
    """`time`: what is stored for a UTC wall time in ns since the epoch; raises OverflowError beyond years 1 to 9999.
    `null`: what arrives as NULL. `json`: a document; NaN and infinity in it become null.
    """

    time: Callable[[int], Any]
    null: Any
    json: Callable[[Any], Any]


def sqlite_values() -> Values:
    """Times as text, JSON as text; NULL is NaN, which SQLite stores as NULL and Python binds like any other float."""
    return Values(_text_times(), math.nan, lambda document: msgspec.json.encode(document).decode())


def postgresql_values() -> Values:
    """As binary COPY takes them: times in µs since 2000, JSON as jsonb with its version byte."""
    return Values(_microseconds_since_2000, None, lambda document: b"\x01" + msgspec.json.encode(document))


def _text_times() -> Callable[[int], str]:
    """`YYYY-MM-DD HH:MM:SS.ffffff`; the part before the point is kept, since neighbours share their second."""
    known_s, known = 0, "1970-01-01 00:00:00"

    def text(wall_ns: int) -> str:
        nonlocal known_s, known
        second, us = divmod(wall_ns // 1000, _SECOND_US)
        if second != known_s:
            known, known_s = (_EPOCH + dt.timedelta(seconds=second)).isoformat(" ", "seconds"), second
        return f"{known}.{us:06d}"

    return text


def _microseconds_since_2000(wall_ns: int) -> int:
    us = wall_ns // 1000
    if not _FIRST_S <= us // _SECOND_US <= _LAST_S:
        raise OverflowError("date value out of range")
    return us - _YEAR_2000_S * _SECOND_US
