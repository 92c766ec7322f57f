"""A stream that lags: what was queued runs only when somebody waits for it, and not before it is let go.

So a device that reads a result too early, or writes over what a queued run still needs, gives wrong tokens.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import torch


class DeferredStream:
    """Implements gpu.cuda.stream.GraphStream on the CPU. `captured`: what was recorded, in order."""

    pins_memory = False

    def __init__(self) -> None:
        self._queue: list[Callable[[], object]] = []
        self._done = 0
        self._lock = threading.Lock()
        self._free = threading.Event()
        self._free.set()
        self.before_replay: Callable[[], None] = lambda: None
        self.captured: list[Callable[[], object]] = []

    @contextlib.contextmanager
    def held(self):
        """Nothing runs within it."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def new_marks(self):
        return _Marks(self)

    @contextlib.contextmanager
    def current(self):
        with torch.inference_mode():
            yield

    def run(self, work) -> None:
        self._queue.append(work)

    @contextlib.contextmanager
    def recording(self):
        yield

    def capture(self, work):
        self.captured.append(work)

        def replay() -> None:
            self.before_replay()
            work()

        with torch.inference_mode():
            work()
        return replay

    @property
    def queued(self) -> int:
        """How much was queued so far."""
        return len(self._queue)

    def run_until(self, end: int) -> None:
        """Run what was queued before `end`."""
        assert self._free.wait(60)
        with self._lock, torch.inference_mode():
            while self._done < end:
                self._queue[self._done]()
                self._done += 1


class _Marks:
    def __init__(self, stream: DeferredStream) -> None:
        self._stream = stream
        self._points: list[int] = []

    def begin(self) -> None:
        self._points = [self._stream.queued]

    def end(self) -> None:
        self._points.append(self._stream.queued)

    def fetched(self) -> None:
        self._points.append(self._stream.queued)

    def wait(self) -> None:
        self._stream.run_until(self._points[2])

    def device_ns(self) -> int:
        return self._points[1] - self._points[0]
