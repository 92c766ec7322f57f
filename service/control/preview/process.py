"""The process of one preview: `python -m service.control.preview.process FOLDER ID NICENESS BYTES SECONDS`.

The store's address comes on standard input. It waits until every older preview has ended, replays, and writes how far
it is into its folder. It ends when it is cancelled, when its time is up, and with the service that started it.
"""

from __future__ import annotations

import sys

from service.control.preview.limits import give_way
from service.process import guard_child

if __name__ == "__main__":
    guard_child()  # before the imports that take seconds: the service may end while they run
    give_way(int(sys.argv[3]), int(sys.argv[4]))

import datetime as dt
import os
import pathlib
import threading
import time
from collections.abc import Sequence

import msgspec

from scheduler.errors import SchedulerError
from scheduler.kernels.loader import load_kernels
from service.control.errors import ControlError
from service.control.preview.errors import PreviewsUnusable
from service.control.preview.files import PreviewFolder, preview_ids
from service.control.preview.messages import PreviewResult, PreviewStatus
from service.control.preview.replay import preview
from service.store.engines import open_database
from service.store.errors import StoreError

_POLL_S = 0.1
_WRITE_S = 0.25


class Reporter:
    """Writes the state of one preview; its last word is one of done, cancelled and failed, said once."""

    def __init__(self, folder: PreviewFolder) -> None:
        self._folder = folder
        self._status = folder.read()
        self._written = time.monotonic()
        self._turn = threading.Lock()

    @property
    def status(self) -> PreviewStatus:
        """As it was written last."""
        return self._status

    def begin(self) -> None:
        """It runs from now on."""
        now = dt.datetime.now(dt.UTC)
        self._write(msgspec.structs.replace(self._status, state="running", message="Starting", started_at=now))

    def progress(self, share: float, message: str) -> None:
        """How far it is, written a few times a second."""
        if time.monotonic() - self._written >= _WRITE_S or message != self._status.message:
            self._write(msgspec.structs.replace(self._status, progress=round(min(0.999, share), 4), message=message))

    def done(self, result: PreviewResult) -> None:
        """The result is there."""
        with self._turn:
            self._folder.write_result(result)
        self._end("done", "Done", progress=1.0)

    def cancelled(self) -> None:
        """Somebody wanted it to end."""
        self._end("cancelled", "Cancelled")

    def failed(self, why: str) -> None:
        """It ended without a result."""
        self._end("failed", why)

    def _end(self, state: str, message: str, **changes: object) -> None:
        now = dt.datetime.now(dt.UTC)
        self._write(msgspec.structs.replace(self._status, state=state, message=message, ended_at=now, **changes))

    def _write(self, status: PreviewStatus) -> None:
        with self._turn:
            if not self._status.ended:
                self._folder.write(status)
                self._status, self._written = status, time.monotonic()


def main(arguments: Sequence[str]) -> int:
    """Runs one preview to its end; 0 when it has one, also a failed one."""
    previews, name, seconds = pathlib.Path(arguments[0]), arguments[1], int(arguments[4])
    folder = PreviewFolder(previews, name)
    reporter = Reporter(folder)
    threading.Thread(target=_watch, args=(folder, reporter, seconds), name="preview-watch", daemon=True).start()
    database = sys.stdin.buffer.read().decode()
    while any(PreviewFolder(previews, other).lives() for other in preview_ids(previews) if other < name):
        time.sleep(_POLL_S)
    reporter.begin()
    try:
        load_kernels()
        reporter.done(preview(open_database(database, readonly=True), reporter.status.request, reporter.progress))
    except (ControlError, StoreError, SchedulerError) as error:
        reporter.failed(_sentence(str(error)))
    except MemoryError:
        most = int(arguments[3]) >> 20
        reporter.failed(f"It needs more memory than the {most:,} MiB that it may take; shorten the window.")
    except Exception as error:  # one that ended without a word would look like one that a restart cut off
        reporter.failed(f"It failed, which nobody foresaw: {type(error).__name__}. The server's log has more.")
        raise
    return 0


def _watch(folder: PreviewFolder, reporter: Reporter, seconds: int) -> None:
    """Ends the process when somebody wants it to end or its time is up, whatever it is doing. The wait counts not."""
    pause = threading.Event()
    deadline = None
    while not pause.wait(_POLL_S):
        if deadline is None and reporter.status.state == "running":
            deadline = time.monotonic() + seconds
        if folder.asked_to_end:
            reporter.cancelled()
        elif deadline is not None and time.monotonic() > deadline:
            reporter.failed(
                f"It did not end within {seconds:,} s: the machine is busy or the window long. Choose a shorter one."
            )
        else:
            continue
        os._exit(0)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PreviewsUnusable as unusable:
        sys.exit(f"preview: {unusable}")
