"""`slow_reader.py NUMBER`: dashboard.reader.process, but that the queries of its SQL page do not end by themselves.

Each writes a line into the file named by NOTES in the environment when it has begun, and when its thread is done.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys

import sqlalchemy as sa

import dashboard.app
from dashboard.context import ControlRoom
from dashboard.reader import process
from dashboard.reads import Reads
from dashboard.routing import SQL_PATH
from service.process import leave
from service.store.database import read_transaction

NOTES = "HELIOS_TEST_NOTES"
PROGRAM = (sys.executable, __file__)
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def note(what):
    with pathlib.Path(os.environ[NOTES]).open("a", encoding="ascii") as file:
        file.write(f"{what}\n")


def noted(path, what):
    """How many queries have begun or ended."""
    return path.read_text(encoding="ascii").split().count(what) if path.exists() else 0


def endless(engine):
    note("begun")
    try:
        with read_transaction(engine) as connection:
            connection.execute(sa.text(ENDLESS)).scalar()
    finally:
        note("ended")


async def page(room, _search):
    return await room.read(endless)


if __name__ == "__main__":
    dashboard.app.ControlRoom = functools.partial(ControlRoom, reads=Reads(patience_s=120, limit_s=600))
    dashboard.app.LAYOUTS[SQL_PATH] = page
    leave(process.main())
