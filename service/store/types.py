"""Column types that read the same on SQLite and PostgreSQL."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[dt.datetime]):
    """An aware UTC datetime: text `YYYY-MM-DD HH:MM:SS.ffffff` on SQLite, timestamptz on PostgreSQL.

    Raises ValueError for a datetime without a time zone.
    """

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[dt.datetime]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.DateTime())

    def process_bind_param(self, value: dt.datetime | None, dialect: Dialect) -> dt.datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; use an aware datetime")
        utc = value.astimezone(dt.UTC)
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: dt.datetime | None, dialect: Dialect) -> dt.datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


class by_bytes(sa.sql.functions.GenericFunction[str]):  # noqa: N801 - reads as a function of a column
    """A text to order and compare by its bytes, as SQLite does; on PostgreSQL the database's locale would decide.

    Names in SQL that come from people are ordered the same on both databases with it.
    """

    type = sa.Text()
    inherit_cache = True


@compiles(by_bytes)
def _as_it_is(element: by_bytes, compiler: SQLCompiler, **options: object) -> str:
    return compiler.process(element.clauses, **options)


@compiles(by_bytes, "postgresql")
def _collated(element: by_bytes, compiler: SQLCompiler, **options: object) -> str:
    return f'({compiler.process(element.clauses, **options)}) COLLATE "C"'
