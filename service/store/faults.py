"""Driver errors turned into the store's own errors."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import exc

from service.store.errors import (
    DatabaseCorrupt,
    DatabaseOlder,
    StoreBusy,
    StoreError,
    StoreMissing,
    StoreNotWritable,
    StoreUnavailable,
)

_POSTGRESQL_BUSY = frozenset({"55P03", "40P01", "40001"})  # lock timeout, deadlock, serialization failure
_POSTGRESQL_NO_TABLE = frozenset({"42P01", "3F000"})
_POSTGRESQL_READ_ONLY = frozenset({"25006", "42501"})


def shown(url: sa.URL) -> str:
    """The address for messages and logs: no password, no driver options."""
    if url.get_backend_name() == "sqlite":
        return urllib.parse.unquote(str(url.database).removeprefix("file:")) if url.query else str(url.database)
    return url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)


@contextlib.contextmanager
def typed_faults(url: sa.URL) -> Iterator[None]:
    """Raises the StoreError that belongs to a driver error from the block.

    Constraint violations and mistakes in a statement stay SQLAlchemy's errors: they are the caller's.
    """
    try:
        yield
    except exc.TimeoutError as error:
        raise StoreUnavailable(
            f"{shown(url)}: every pooled connection is in use; try again, or look for a query that does not end"
        ) from error
    except exc.DBAPIError as error:
        typed = store_error(url, error)
        if typed is None:
            raise
        raise typed from error


def store_error(url: sa.URL, error: exc.DBAPIError) -> StoreError | None:
    """The StoreError for a driver error, or None when it is not the database's state that is at fault."""
    if isinstance(error, exc.IntegrityError | exc.DataError):
        return None
    if url.get_backend_name() == "sqlite":
        return _sqlite_error(url, error)
    return _postgresql_error(url, error)


def _sqlite_error(url: sa.URL, error: exc.DBAPIError) -> StoreError | None:
    text = str(error.orig)
    where = shown(url)
    if "is locked" in text or "is busy" in text:
        return StoreBusy(f"{where}: another process holds the database's write lock; try again")
    if "not a database" in text or "malformed" in text or "unsupported file format" in text:
        return DatabaseCorrupt(
            f"{where}: {text}. Move this file and its -wal and -shm neighbours away, restore a copy, "
            "or name another one with --database"
        )
    if "readonly" in text or "read-only" in text:
        return StoreNotWritable(f"{where}: {text}. Make the file and its directory writable for this user")
    if "unable to open" in text:
        return StoreMissing(
            f"{where}: cannot open it. `helios serve` or `helios db upgrade` creates it; its directory must exist "
            "and be accessible for this user"
        )
    if "disk is full" in text or "disk I/O" in text:
        return StoreUnavailable(f"{where}: {text}. Free disk space or check the disk; nothing was changed")
    if "no such table" in text or "no such column" in text:
        return DatabaseOlder(f"{where}: {text}. Run `helios db upgrade`")
    return StoreUnavailable(f"{where}: {text}") if isinstance(error, exc.OperationalError) else None


def _postgresql_error(url: sa.URL, error: exc.DBAPIError) -> StoreError | None:
    code = getattr(error.orig, "sqlstate", None)
    text = " ".join(str(error.orig).split())
    where = shown(url)
    if code in _POSTGRESQL_BUSY:
        return StoreBusy(f"{where}: another process holds a lock; try again ({text})")
    if code in _POSTGRESQL_NO_TABLE:
        return DatabaseOlder(f"{where}: {text}. Run `helios db upgrade`")
    if code in _POSTGRESQL_READ_ONLY:
        return StoreNotWritable(f"{where}: {text}. Give this user the right to create and write tables")
    if f'database "{url.database}" does not exist' in text:  # a failed connection carries no code
        return StoreMissing(f"{where}: {text}. Create the database first, for example with createdb")
    if isinstance(error, exc.OperationalError | exc.InterfaceError):
        return StoreUnavailable(f"{where}: {text}. Check that PostgreSQL runs and that the address is right")
    return None
