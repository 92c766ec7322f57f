"""Where bench_engine_loop's time goes: stopwatches around the engine's parts, and inside the programs' thread."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from gpu import transport
from gpu.programs import inference
from gpu.programs.drafting import Drafter
from gpu.programs.host_sampler import HostSampler
from gpu.transport import Finished
from service.engine import completion
from service.engine.plan_records import PlanRecords
from service.engine.worker import Worker
from service.ipc.server import EngineServer
from service.journal.writer import JournalWriter

_clock: Callable[[], int] = time.perf_counter_ns


def use_cpu_time() -> None:
    """From now on the stopwatches take the calling thread's CPU time, for a machine that does other things too."""
    global _clock  # noqa: PLW0603 - one clock for all stopwatches
    _clock = time.thread_time_ns


def clock_ns() -> int:
    """Wall time, or CPU time."""
    return _clock()


LISTED = frozenset({"plan", "submit", "collect", "append"})


class Stopwatch:
    """Adds the time spent in wrapped calls to their part; keeps each call of those that are LISTED."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = collections.defaultdict(int)
        self.calls_us: dict[str, list[float]] = collections.defaultdict(list)

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Time `owner.name` from now on."""
        call = getattr(owner, name)
        listed = self.calls_us[name] if name in LISTED else None

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            result = None
            began = clock_ns()
            try:
                return (result := call(*args, **kwargs))
            finally:
                took_ns = clock_ns() - began
                self.spent_ns[part] += took_ns
                if listed is not None and (result is not None or name not in ("collect", "plan")):
                    listed.append(took_ns / 1e3)

        setattr(owner, name, timed)


def watch(worker: Worker, journal: JournalWriter, server: EngineServer) -> tuple[Stopwatch, contextlib.ExitStack]:
    """Time every call out of the loop by the part that it belongs to, until the stack closes."""
    stopwatch, stack = Stopwatch(), contextlib.ExitStack()
    core = worker.core
    for owner, name in ((PlanRecords, "record"), (completion, "_completed")):
        stack.enter_context(mock.patch.object(owner, name, getattr(owner, name)))  # put back what follows
        stopwatch.wrap(owner, name, "tracing")
    for name in ("advance_to", "complete", "plan", "commit", "published_outputs", "admit"):
        stopwatch.wrap(core.scheduler, name, "scheduler")
    for name in ("append", "sync_if_due"):
        stopwatch.wrap(journal, name, "tracing")
    for name in ("planned", "executed", "requests", "refresh", "ended"):
        stopwatch.wrap(core.metrics, name, "metrics")
    for name in ("published", "queued"):
        stopwatch.wrap(core.metrics.per_request, name, "metrics")
    for name in ("receive", "send", "probe"):
        stopwatch.wrap(server, name, "ipc")
    for name in ("submit", "collect"):
        stopwatch.wrap(core.device, name, "device")
    return stopwatch, stack


@dataclasses.dataclass(slots=True)
class ProgramRun:
    """One run on the programs' thread: all of it with its uploads, hidden states, logits and drafts, and sampling."""

    total_us: float = 0.0
    model_us: float = 0.0
    sampling_us: float = 0.0
    device_ns: int = 0
    completed_ns: int = 0

    @property
    def outside_us(self) -> float:
        """All but the model."""
        return self.total_us - self.model_us


class ProgramWatch:
    """Takes the time of the CPU device's programs while open. `lanes_by_fence`: how many decoding lanes each had."""

    def __init__(self) -> None:
        self.lanes_by_fence: dict[int, int] = {}
        self._runs: list[ProgramRun] = []
        self._now = ProgramRun()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within, every run is noted, in the order of fences."""
        run_job = transport._run_job

        def timed_job(*job: Any) -> Finished:
            self._now = ProgramRun()
            began = clock_ns()
            finished = run_job(*job)
            self._now.total_us = (clock_ns() - began) / 1e3
            self._now.device_ns, self._now.completed_ns = finished.device_ns, finished.completed_ns
            self._runs.append(self._now)
            return finished

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(transport, "_run_job", timed_job))
            for owner, name, field in (
                (inference, "hidden_states", "model_us"),
                (inference, "logits", "model_us"),
                (Drafter, "draft", "model_us"),
                (Drafter, "absorb", "model_us"),
                (HostSampler, "verify", "sampling_us"),
            ):
                stack.enter_context(mock.patch.object(owner, name, self._timed(getattr(owner, name), field)))
            yield

    def decode_runs(self, streams: int) -> list[ProgramRun]:
        """Those with a lane for every stream; one at least."""
        if streams not in self.lanes_by_fence.values():
            raise RuntimeError(f"no program had all {streams} streams in it; let them have more tokens")
        return [run for fence, run in enumerate(self._runs, start=1) if self.lanes_by_fence[fence] == streams]

    def busy_share(self, streams: int) -> float:
        """How much of the time from the first to the last of decode_runs() programs ran."""
        full = [fence for fence, lanes in self.lanes_by_fence.items() if lanes == streams]
        if len(full) < 2:
            return math.nan
        first, last = full[0], full[-1]
        busy_ns = sum(run.device_ns for run in self._runs[first:last])
        return busy_ns / (self._runs[last - 1].completed_ns - self._runs[first - 1].completed_ns)

    def gaps_us(self, streams: int) -> list[float]:
        """From the end of one of decode_runs() to the start of the next, where nothing ran between them; [] without."""
        pairs = itertools.pairwise(enumerate(self._runs, start=1))
        return [
            (after.completed_ns - after.device_ns - before.completed_ns) / 1e3
            for (first, before), (second, after) in pairs
            if self.lanes_by_fence[first] == self.lanes_by_fence[second] == streams
        ]

    def _timed(self, call: Callable[..., Any], field: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = clock_ns()
            result = call(*args, **kwargs)
            took_us = (clock_ns() - began) / 1e3
            setattr(self._now, field, getattr(self._now, field) + took_us)
            return result

        return timed
