"""Columns of times as whole numbers since 1970, the same on both databases. Other spellings round differently."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

_DAY_OF_1970, _SECONDS_OF_A_DAY = 2440587.5, 86_400.0
"""1970's first day as a Julian one."""


def epoch_s(bind: sa.Engine | sa.Connection, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """A column of times from 1970 on as whole seconds since then, without their fractions."""
    if bind.dialect.name == "postgresql":
        return sa.cast(sa.func.floor(sa.extract("epoch", column)), sa.BigInteger)
    # SQLite would round a fraction up to the next second. Its strftime takes three times as long, for a text.
    days = sa.func.julianday(sa.func.substr(column, 1, 19)) - _DAY_OF_1970
    return sa.cast(days * _SECONDS_OF_A_DAY + 0.5, sa.Integer)


def micros(bind: sa.Engine | sa.Connection, column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """A column of times as whole microseconds since 1970, exactly."""
    if bind.dialect.name == "postgresql":
        return sa.cast(sa.extract("epoch", column) * 1_000_000, sa.BigInteger)
    return epoch_s(bind, column) * 1_000_000 + sa.cast(sa.func.substr(column, 21, 6), sa.Integer)
