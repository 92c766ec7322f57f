"""What can go wrong while records are stored, sorted into two kinds.

    RecorderError
    └── UnusableRecord   a record whose values no column can hold

A bad record is set aside and counted; anything else means that the database cannot be used now, and is tried again.
"""

from __future__ import annotations

import psycopg
from sqlalchemy import exc

_DATA_CLASSES = frozenset({"22", "23", "54"})  # data exception, constraint violation, program limit exceeded


class RecorderError(Exception):
    """Base of the errors that the recorder raises on purpose."""


class UnusableRecord(RecorderError, ValueError):
    """A record holds a value that its column cannot, such as NaN."""


def blames_record(error: Exception) -> bool:
    """Whether the error is a record's fault, so that trying again cannot help."""
    if isinstance(error, exc.DBAPIError):
        return _blames_data(error.orig, isinstance(error, exc.IntegrityError | exc.DataError))
    if isinstance(error, psycopg.Error):
        return _blames_data(error, isinstance(error, psycopg.IntegrityError | psycopg.DataError))
    return isinstance(error, ValueError | TypeError | OverflowError | exc.StatementError)


def _blames_data(error: BaseException | None, otherwise: bool) -> bool:
    code = getattr(error, "sqlstate", None)
    return code[:2] in _DATA_CLASSES if isinstance(code, str) else otherwise
