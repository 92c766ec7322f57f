"""A GraphStream without CUDA: everything runs at once, on the thread that queues it. For tests and the self-check."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

from gpu.cuda.stream import FrameMarks, Replay, Work


class InlineStream:
    """Runs what a CUDA stream would queue. A replay is the work itself, in the same tensors where it keeps them."""

    @property
    def pins_memory(self) -> bool:
        """Never: there is no driver to pin it."""
        return False

    def new_marks(self) -> FrameMarks:
        """Marks by the host's clock."""
        return _InlineMarks()

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Without autograd."""
        with torch.inference_mode():
            yield

    def run(self, work: Work) -> None:
        """Run it now."""
        work()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Nothing to prepare."""
        yield

    def capture(self, work: Work) -> Replay:
        """Run it once; what runs it again is `work`."""

        def replay() -> None:
            with torch.inference_mode():
                work()

        replay()
        return replay


class _InlineMarks:
    def __init__(self) -> None:
        self._begin_ns = 0
        self._end_ns = 0

    def begin(self) -> None:
        self._begin_ns = time.monotonic_ns()

    def end(self) -> None:
        self._end_ns = time.monotonic_ns()

    def fetched(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def device_ns(self) -> int:
        return max(1, self._end_ns - self._begin_ns)
