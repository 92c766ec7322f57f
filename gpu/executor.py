"""One thread that runs one job at a time, and a descriptor that becomes readable when its result waits."""

from __future__ import annotations

import os
import queue
import select
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class SingleExecutor(Generic[Result]):
    """Runs jobs on a daemon thread. submit() and collect() are called from one other thread and never wait.

    A job must not raise: turn failures into results. Pipes rather than eventfd, since macOS has only those.
    """

    def __init__(self, name: str, start: Callable[[], None]) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], Result] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._start = start
        weakref.finalize(self, _close, self._read_fd, self._write_fd)  # the running thread keeps self alive
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def completion_fd(self) -> int:
        """Readable while a result waits."""
        return self._read_fd

    def submit(self, job: Callable[[], Result]) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def collect(self) -> Result | None:
        """The oldest result, or None."""
        try:
            os.read(self._read_fd, 1)
        except BlockingIOError:
            return None
        return self._results.get_nowait()

    def wait(self) -> Result:
        """The oldest result, waiting for it; for start-up only."""
        select.select([self._read_fd], [], [])
        os.read(self._read_fd, 1)
        return self._results.get_nowait()

    def stop(self, abandon: bool) -> None:
        """End the thread after its job, whose result can still be collected; with `abandon` do not wait for it."""
        self._jobs.put(None)
        if not abandon:
            self._thread.join()

    def _run(self) -> None:
        self._start()
        while (job := self._jobs.get()) is not None:
            self._results.put(job())
            os.write(self._write_fd, b"\0")


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
