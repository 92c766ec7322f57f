"""The one place that talks to torch.cuda: a stream, the graphs recorded for it, and the marks of a frame in it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import torch

Work = Callable[[], object]
Replay = Callable[[], None]

_WARM_UPS = 2
_MILLISECOND_NS = 1e6


class FrameMarks(Protocol):
    """Three points of one frame in the stream's work; used again for a later frame once wait() has returned."""

    def begin(self) -> None:
        """The program comes next."""

    def end(self) -> None:
        """The program was queued."""

    def fetched(self) -> None:
        """The copies of its results were queued."""

    def wait(self) -> None:
        """Sleep until the stream has passed fetched(). Raises what went wrong on the device."""

    def device_ns(self) -> int:
        """Time between begin() and end() on the device, at least 1."""


class GraphStream(Protocol):
    """A queue of device work that is carried out in order, beside the host."""

    @property
    def pins_memory(self) -> bool:
        """Whether host buffers must be pinned so that copies do not wait."""

    def new_marks(self) -> FrameMarks:
        """The marks of one frame in flight."""

    def current(self) -> AbstractContextManager[None]:
        """Within it, torch's operations on the device go to this stream, without autograd."""

    def run(self, work: Work) -> None:
        """Queue the operations that `work` makes; called within current()."""

    def recording(self) -> AbstractContextManager[None]:
        """Around all captures."""

    def capture(self, work: Work) -> Replay:
        """Run `work` twice, record it once, and return what runs it again with the same tensors."""


class CudaStream:
    """A GraphStream on one CUDA device. All graphs share one memory pool, since replays never overlap."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def pins_memory(self) -> bool:
        """Always."""
        return True

    def new_marks(self) -> FrameMarks:
        """Events of this stream."""
        return _CudaMarks(self._stream)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make it torch's current stream on this thread."""
        with torch.cuda.stream(self._stream), torch.inference_mode():
            yield

    def run(self, work: Work) -> None:
        """Torch queues by itself."""
        work()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """No garbage collection while recording, since it may free device memory; caches are emptied once around it."""
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def capture(self, work: Work) -> Replay:
        """On a side stream, always the same one, so that later graphs can use the memory of earlier ones.

        Warming up first lets libraries initialise themselves, which fails within a capture. Other threads may use
        CUDA meanwhile.
        """
        self._side.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._side), torch.inference_mode():
            for _ in range(_WARM_UPS):
                work()
                self._side.synchronize()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the capture is invalid already; say why, not that
                    graph.capture_end()
                raise
            graph.capture_end()
        self._stream.wait_stream(self._side)
        return graph.replay


class _CudaMarks:
    """Timing events around the replay rather than in the graph: a graph's own events are overwritten by its next run.

    The last event sleeps in the driver rather than spin, as the worker thread needs the core.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._fetched = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Record the first event."""
        self._begin.record(self._stream)

    def end(self) -> None:
        """Record the second event."""
        self._end.record(self._stream)

    def fetched(self) -> None:
        """Record the last event."""
        self._fetched.record(self._stream)

    def wait(self) -> None:
        """Wait for the last event; torch lets other threads run meanwhile."""
        self._fetched.synchronize()

    def device_ns(self) -> int:
        """Between the first two events."""
        elapsed_ms = float(self._begin.elapsed_time(self._end))
        return max(1, round(elapsed_ms * _MILLISECOND_NS))
