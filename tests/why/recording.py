"""A run of the engine as it is recorded: its journal written to disk as well, and brought into a store."""

from __future__ import annotations

import pathlib

import sqlalchemy as sa

from service.journal.writer import JournalWriter
from service.store.database import open_database, upgrade
from tests.recorder.conftest import drain

RUN = "run-1"


class Tee:
    """A journal that hands everything to a real writer too. `lose`: numbers of writes that never reach the disk."""

    def __init__(self, journal, directory: pathlib.Path, lose=()) -> None:
        self._journal = journal
        self._lose = set(lose)
        self._count = 0
        self.writer = JournalWriter(directory, run_id=RUN, segment_bytes=8 << 20, budget_bytes=256 << 20)

    def append(self, records, last_fence) -> None:
        self._journal.append(records, last_fence)
        self._count += 1
        if self._count not in self._lose:
            self.writer.append(records, last_fence)

    def __getattr__(self, name):
        return getattr(self._journal, name)


def tee(rig, directory: pathlib.Path, lose=()) -> Tee:
    """From now on the rig's journal is on disk too."""
    made = rig.worker._journal = Tee(rig.worker._journal, directory, lose)
    return made


def stored(tee_: Tee, url: str) -> sa.Engine:
    """The store at `url` with everything that the journal holds."""
    tee_.writer.close()
    upgrade(url)
    engine = open_database(url)
    drain(engine, tee_.writer.directory, 50)
    return engine
