"""Whether a SQLite file is still the one that was opened.

A database that is deleted or replaced under a running server takes writes as before, into a file that has no name.
"""

from __future__ import annotations

import os
import pathlib
import weakref

import sqlalchemy as sa

from service.store.errors import StoreReplaced

REPLACED = "the database file was removed or replaced; restart the server"


class DatabaseFile:
    """The file behind one engine. A look is one stat(), some microseconds: often enough to be made at each write."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._opened: os.stat_result | None = None

    def opened(self) -> None:
        """A connection was made; the first one says which file it is."""
        if self._opened is None:
            self._opened = self._found()

    @property
    def replaced(self) -> bool:
        """Whether the path leads to another file now, or to none."""
        if self._opened is None:
            return False
        found = self._found()
        return found is None or not os.path.samestat(found, self._opened)

    def check(self) -> None:
        """Raises StoreReplaced."""
        if self.replaced:
            raise StoreReplaced(f"{self._path}: {REPLACED}")

    def _found(self) -> os.stat_result | None:
        try:
            return self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # a directory that may not be read just now proves nothing
            return self._opened


_FILES: weakref.WeakKeyDictionary[sa.Engine, DatabaseFile] = weakref.WeakKeyDictionary()


def watch_file(engine: sa.Engine, path: pathlib.Path) -> DatabaseFile:
    """The file of a SQLite engine, from now on known to `was_replaced`."""
    return _FILES.setdefault(engine, DatabaseFile(path))


def was_replaced(engine: sa.Engine) -> bool:
    """Whether the engine's database file was removed or replaced since it was first opened; False without a file."""
    file = _FILES.get(engine)
    return file is not None and file.replaced
