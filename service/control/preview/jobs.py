"""Previews: starts, shows and cancels them. All of its state is files, so that every process of the service agrees."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import fcntl
import os
import pathlib
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator

import sqlalchemy as sa

from service.control.preview.errors import NothingRecorded, PreviewsFull, PreviewsUnusable
from service.control.preview.files import LOCK, PRIVATE, PreviewFolder, preview_ids
from service.control.preview.messages import PreviewRequest, PreviewStatus
from service.settings import child_environment
from service.store.filters import earlier
from service.store.queries import list_plans

MOST_KEPT = 20
MOST_WAITING = 3
STARTING = "Starting; it runs when the server leaves the processor alone"
MODULE = "service.control.preview.process"


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Of one preview's process. `niceness`: 19 has next to nothing where others want the processor; 0 as everybody."""

    niceness: int = 19
    memory_bytes: int = 3 << 30
    seconds: int = 900


class Previews:
    """The previews of one data directory. Methods must be called on the event loop of the process's main thread.

    `folder`: where their files are. `database`: the store's address, which the process of a preview reads from.
    `engine`: the same store. One preview runs at a time; MOST_WAITING wait for it; the newest MOST_KEPT are kept.
    """

    def __init__(self, folder: pathlib.Path, database: str, engine: sa.Engine, limits: Limits | None = None) -> None:
        self._folder = folder
        self._database = database
        self._engine = engine
        self._limits = limits or Limits()
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    async def start(self, request: PreviewRequest, by: str) -> PreviewStatus:
        """Starts one, or lets it wait for its turn. `by`: who wants it.

        Raises NothingRecorded, PreviewsFull, PreviewsUnusable and StoreError.
        """
        await asyncio.to_thread(self._check_recorded, request)
        folder, lock, status = await asyncio.to_thread(self._make, request, by)
        try:
            # Not in a thread: the kernel would take the thread's end for the death of the process's parent.
            self._launch(folder, lock)
        except OSError as error:
            folder.remove()
            raise PreviewsUnusable(f"the preview's process cannot be started: {error.strerror}") from error
        finally:
            os.close(lock)
        return status

    async def status(self, preview_id: str) -> PreviewStatus:
        """How far it is. Raises UnknownPreview and PreviewsUnusable."""
        self._reap()
        return await asyncio.to_thread(lambda: PreviewFolder(self._folder, preview_id).read())

    async def kept(self) -> list[PreviewStatus]:
        """Every kept preview, newest first, unreadable ones left out."""
        self._reap()
        return await asyncio.to_thread(self._read_kept)

    async def cancel(self, preview_id: str) -> PreviewStatus:
        """Ends it if it has not ended; returns what it is then. Raises UnknownPreview and PreviewsUnusable."""
        folder = PreviewFolder(self._folder, preview_id)
        status = await asyncio.to_thread(folder.read)
        if not status.ended:
            await asyncio.to_thread(folder.ask_to_end)
            child = self._children.get(preview_id)
            if child is not None:
                child.kill()  # on a busy machine it may be long until it looks for itself
            status = await asyncio.to_thread(folder.read)
        self._reap()
        return status

    def _check_recorded(self, request: PreviewRequest) -> None:
        until = request.until
        since = None if until is None else earlier(until, dt.timedelta(minutes=request.minutes))
        found = list_plans(self._engine, since=since, until=until, run=request.run_id, limit=1)
        if not found.items:
            where = "in this window" if until is not None else "yet"
            raise NothingRecorded(f"no plan was recorded {where}, so there is no traffic to replay")

    def _make(self, request: PreviewRequest, by: str) -> tuple[PreviewFolder, int, PreviewStatus]:
        """A folder whose lock is held by the returned descriptor, so that it counts as living from its beginning."""
        try:
            self._folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            with _alone(self._folder):
                waits = self._make_room()
                folder = PreviewFolder(self._folder, f"{time.time_ns():016x}{secrets.token_hex(4)}")
                status = PreviewStatus(
                    id=folder.id,
                    state="queued",
                    progress=0.0,
                    message="Waits for its turn" if waits else STARTING,
                    request=request,
                    made_at=dt.datetime.now(dt.UTC),
                    by=by,
                )
                return folder, _written(folder, status), status
        except OSError as error:
            raise PreviewsUnusable(f"cannot write to {self._folder}: {error.strerror}") from error

    def _make_room(self) -> bool:
        """Forgets the oldest that have ended; whether a new one has to wait. Raises PreviewsFull."""
        folders = [PreviewFolder(self._folder, name) for name in preview_ids(self._folder)]
        living = [folder for folder in folders if folder.lives()]
        if len(living) > MOST_WAITING:
            raise PreviewsFull(
                f"one preview runs and {MOST_WAITING} wait for it; try again when one has ended, or cancel one"
            )
        ended = [folder for folder in folders if folder not in living]
        for folder in ended[: max(0, len(folders) - MOST_KEPT + 1)]:
            folder.remove()
        return bool(living)

    def _launch(self, folder: PreviewFolder, lock: int) -> None:
        limits = self._limits
        numbers = (limits.niceness, limits.memory_bytes, limits.seconds)
        self._reap()
        child = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(self._folder), folder.id, *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=child_environment(os.getpid()),
            pass_fds=(lock,),
            start_new_session=True,
        )
        self._children[folder.id] = child
        assert child.stdin is not None, "it has a pipe"
        with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
            pipe.write(self._database.encode())  # not an argument: it may hold a password

    def _reap(self) -> None:
        for name in [name for name, child in self._children.items() if child.poll() is not None]:
            del self._children[name]

    def _read_kept(self) -> list[PreviewStatus]:
        found = []
        for name in reversed(preview_ids(self._folder)):
            with contextlib.suppress(PreviewsUnusable, LookupError):
                found.append(PreviewFolder(self._folder, name).read())
        return found


def _written(folder: PreviewFolder, status: PreviewStatus) -> int:
    """Makes the folder; its lock, held. On a full disk nothing stays, above all no lock that nobody lets go of.

    Raises OSError and PreviewsUnusable.
    """
    with contextlib.ExitStack() as undo:
        undo.callback(folder.remove)
        folder.path.mkdir(mode=PRIVATE)
        lock = os.open(folder.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        undo.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.write(status)
        undo.pop_all()
    return lock


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Two processes of the service do not make previews at the same moment. Raises OSError."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
