"""The store of a million plans, made once for a session; it must not be written to."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import sqlalchemy as sa

from service.load.million import MILLION, Made, fill_store
from service.store.database import open_database


@dataclasses.dataclass(frozen=True)
class Million:
    """An engine over the store, and what it holds. The store ends at `now`."""

    store: sa.Engine
    made: Made
    now: dt.datetime


@contextlib.contextmanager
def million_store(plans: int = MILLION) -> Iterator[Million]:
    """A SQLite file of a gigabyte, deleted at the end. A session's fixture `million` is this, in tests/browser."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="helios-million-"))
    try:
        now = dt.datetime.now(dt.UTC)
        made = fill_store(str(folder / "helios.db"), now, plans)
        store = open_database(str(folder / "helios.db"))
        yield Million(store, made, now)
        store.dispose()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
