"""What can go wrong behind an engine while it serves: each a context that holds while it lasts.

A fault is a function of the server; entering its result makes the fault, leaving it ends it. Only processes and files
of the given server are touched.
"""

from __future__ import annotations

import contextlib
import pathlib
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from service.load.server import SimulatedServer

Fault = Callable[[SimulatedServer], AbstractContextManager[None]]


@contextlib.contextmanager
def no_fault(_server: SimulatedServer) -> Iterator[None]:
    """Everything works."""
    yield


@contextlib.contextmanager
def recorder_killed(server: SimulatedServer) -> Iterator[None]:
    """SIGKILL, and at once another recorder, as the supervisor does."""
    if server.recorder is not None:
        server.recorder.kill()
        server.recorder.wait()
    server.start_recorder()
    yield


@contextlib.contextmanager
def foreign_lock(server: SimulatedServer) -> Iterator[None]:
    """Another process's connection holds SQLite's write lock."""
    with contextlib.closing(_connect(server)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextlib.contextmanager
def open_reader(server: SimulatedServer) -> Iterator[None]:
    """A transaction that has read and stays open, so that no checkpoint can start SQLite's log anew."""
    with contextlib.closing(_connect(server)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM engine_runs").fetchone()
        yield
        connection.execute("ROLLBACK")


@contextlib.contextmanager
def journal_disk_full(server: SimulatedServer) -> Iterator[None]:
    """The engine may write no file beyond one byte, so that its journal is refused as on a full disk."""
    assert server.engine is not None
    with file_size_limit(server.engine.pid, 1):
        yield


@contextlib.contextmanager
def file_size_limit(pid: int, limit_bytes: int) -> Iterator[None]:
    """A soft RLIMIT_FSIZE of another process; Python answers it with an error, EFBIG. Linux only."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def _connect(server: SimulatedServer) -> sqlite3.Connection:
    path = pathlib.Path(server.settings.database.removeprefix("sqlite:///"))
    return sqlite3.connect(path, isolation_level=None, timeout=30)
