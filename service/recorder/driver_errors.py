"""Statements that go to the driver directly end with the errors that SQLAlchemy raises for statements of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import exc


@contextlib.contextmanager
def as_sqlalchemy(connection: sa.Connection, statement: str, driver_error: type[Exception]) -> Iterator[None]:
    """Raises DBAPIError, or the kind of it that fits, in place of `driver_error`, the base of the driver's errors."""
    try:
        yield
    except driver_error as error:
        raise exc.DBAPIError.instance(statement, None, error, driver_error, dialect=connection.dialect) from error
