"""Refuses values that no column can hold, or only one of the two databases: what is stored is the same on both.

Whole columns of a transaction are looked at, because a look at each value of each record costs more than its insert.
A column's type says what it may hold; the few that PostgreSQL keeps in an index must also be short enough for one.
Integers over 64 bits and times beyond year 9999 are refused earlier, by the drivers and by `values`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from service.recorder.errors import UnusableRecord
from service.store import tables
from service.store.types import JSON

NAME_BYTES = 500
"""Of a text in a key or index; PostgreSQL's limit is about 2,700 for all the columns of one entry."""
_NAME_CHARACTERS = NAME_BYTES // 4  # never more bytes than that in UTF-8
_LARGEST = 2**31 - 1
_JSON_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

Check = Callable[[str, Sequence[Any]], None]


class ColumnChecks:
    """The checks of some columns, for rows that hold their values in this order. `null`, by identity, is NULL."""

    def __init__(self, columns: Sequence[sa.Column[Any]], null: object) -> None:
        self._null = null
        self._checks = [
            (index, column.name, str(column), bool(column.nullable), check)
            for index, column in enumerate(columns)
            if (check := _check_of(column)) is not None
        ]

    def __call__(self, rows: Sequence[Sequence[Any]]) -> None:
        """Raises UnusableRecord when one of the rows holds a value that cannot be stored."""
        columns = list(zip(*rows, strict=True))
        for index, _, name, nullable, check in self._checks:
            check(name, self._present(columns[index]) if nullable else columns[index])

    def columns(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """As for rows, but of some columns by name; the others are not looked at."""
        for _, key, name, nullable, check in self._checks:
            values = columns.get(key)
            if values is not None:
                check(name, self._present(values) if nullable else values)

    def _present(self, values: Sequence[Any]) -> list[Any]:
        null = self._null
        return [value for value in values if value is not null]


def _check_of(column: sa.Column[Any]) -> Check | None:
    kind = column.type
    if isinstance(kind, sa.Float):
        return _finite
    if isinstance(kind, sa.Integer) and not isinstance(kind, sa.BigInteger):
        return _small
    if isinstance(kind, sa.Text):
        return _name if column.name in _NAMES else _text
    return _json if kind is JSON else None


def _indexed_texts() -> frozenset[str]:
    found: set[str] = set()
    for table in tables.metadata.tables.values():
        keyed = [*table.primary_key.columns, *(column for index in table.indexes for column in index.columns)]
        found.update(column.name for column in keyed if isinstance(column.type, sa.Text))
    return frozenset(found)


_NAMES = _indexed_texts()


def _finite(name: str, values: Sequence[float]) -> None:
    total = sum(values)
    if total - total != 0.0 and not all(map(math.isfinite, values)):  # a finite sum proves finite terms, cheaply
        bad = next(value for value in values if not math.isfinite(value))
        raise UnusableRecord(f"{name}: {bad} is not finite, so no query could compare it")


def _small(name: str, values: Sequence[int]) -> None:
    if values and (max(values) > _LARGEST or min(values) < -_LARGEST - 1):
        raise UnusableRecord(f"{name}: a number does not fit in 32 bits")


def _text(name: str, values: Sequence[str]) -> None:
    if "\0" in "".join(values):
        raise UnusableRecord(f"{name}: a text holds a NUL")


def _name(name: str, values: Sequence[str]) -> None:
    _text(name, values)
    longest = max(map(len, values), default=0)
    if longest > _NAME_CHARACTERS and max(len(value.encode()) for value in values) > NAME_BYTES:
        raise UnusableRecord(f"{name}: a name is longer than {NAME_BYTES} bytes")


def _json(name: str, values: Sequence[Any]) -> None:
    distinct = list(set(values))  # neighbours often share theirs
    if distinct and isinstance(distinct[0], str):
        documents = "\n".join(distinct)
    else:
        documents = b"\n".join(distinct).decode(errors="replace")
    if "\\u0000" in documents and _JSON_NUL.search(documents):
        raise UnusableRecord(f"{name}: a text in it holds a NUL")
