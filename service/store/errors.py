"""Typed errors of the trace store.

    StoreError
    ├── InvalidDatabaseUrl    the address cannot be read, or names a database that Helios does not use
    ├── InvalidFilter         a query's filter, limit or cursor cannot be used; `name` says which
    ├── StatementError        an operator's statement would write, is wrong or takes too long; nothing was changed
    ├── ReadTooLong           a view's reads took as long as they may and were stopped
    ├── TooManyReads          as many views as may read at once do, and others wait; try again
    ├── ExportFailed          an answer cannot be written to the file that was named; no file was made
    ├── StoreUnavailable      the database cannot be reached or used now; nothing was changed
    │   ├── StoreBusy         another process held the write lock for too long; try again
    │   ├── StoreMissing      there is no database at this address yet
    │   └── StoreReplaced     the open database's file was removed or replaced
    ├── StoreNotWritable      a directory or file that cannot be created or written
    └── DatabaseUnusable      the file or server answers, but what it holds cannot be used
        ├── DatabaseNewer     written by a newer Helios
        ├── DatabaseOlder     written by an older Helios and not upgraded yet
        ├── UpgradeBlocked    an operator's own view rests on what an upgrade makes anew; nothing was changed
        ├── DatabaseForeign   holds tables of the same names that Helios did not make
        └── DatabaseCorrupt   not a database, or damaged

Messages say what is wrong and what to do; none of them holds a password.
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of every error that the trace store raises on purpose."""


class InvalidDatabaseUrl(StoreError, ValueError):
    """The database address cannot be read, or names a database that Helios does not use."""


class InvalidFilter(StoreError, ValueError):
    """A filter that cannot be used: `name` is the parameter, `problem` says what is allowed."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"{name}: {problem}")


class StatementError(StoreError, ValueError):
    """An operator's own statement that would write, cannot be read or takes too long.

    `offset` is the character of the statement, from 0, at which the database found it wrong, where it says so.
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        self.offset = offset
        super().__init__(message)


class ReadTooLong(StoreError):
    """A view's reads took as long as they may."""


class TooManyReads(StoreError):
    """As many reads as may run at once do, and as many as may wait for them; `retry_after_s` says when to try again."""

    def __init__(self, message: str, retry_after_s: int = 2) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class ExportFailed(StoreError):
    """An answer cannot be written to the file that was named."""


class StoreUnavailable(StoreError):
    """The database cannot be reached or used now; nothing was changed."""


class StoreBusy(StoreUnavailable):
    """Another process held the write lock for too long."""


class StoreMissing(StoreUnavailable):
    """There is no database at this address yet."""


class StoreReplaced(StoreUnavailable):
    """The file that is open is not the one at its path any more: what is written to it is lost."""


class StoreNotWritable(StoreError):
    """A directory or file of the store that cannot be created or written."""


class DatabaseUnusable(StoreError):
    """The database answers, but what it holds cannot be used."""


class DatabaseNewer(DatabaseUnusable):
    """The database was written by a newer Helios."""


class DatabaseOlder(DatabaseUnusable):
    """The database was written by an older Helios and has not been upgraded."""


class UpgradeBlocked(DatabaseUnusable):
    """An operator's own view rests on a table or view that an upgrade makes anew; the message names it."""


class DatabaseForeign(DatabaseUnusable):
    """The database holds tables with Helios's names that Helios did not make."""


class DatabaseCorrupt(DatabaseUnusable):
    """The file is no database, or it is damaged."""
