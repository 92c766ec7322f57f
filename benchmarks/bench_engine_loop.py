"""Engine CPU per plan outside the device: scheduler, tracing, metrics, connection, and the loop around them.

    python benchmarks/bench_engine_loop.py [--lanes 8] [--plans 2000]

The device is a stand-in that answers at once, so everything counted is the engine's own work. The journal and the
socket are the real ones, in a temporary directory; a client in the same process empties the socket between
iterations, outside the measurement. Each plan is two iterations, as when serving: the one that completes, plans
and publishes, and the one that writes down what was published. Wall time is measured, so run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import collections
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import zmq
from rich.console import Console
from rich.table import Table

from gpu.device import DeviceLimits, Frame, FrameResult, LaneResult, SamplingParameters
from scheduler.policy import PolicyConfig
from scheduler.shapes import GraphKind, GraphShape
from service.engine import completion, planning
from service.engine.start import build_worker
from service.engine.worker import Worker
from service.ipc.messages import Sampling, Submit, encode
from service.ipc.server import EngineServer
from service.journal.writer import JournalWriter
from service.settings import EngineStart, Settings
from service.telemetry.shared import MetricsWriter

CONTEXT = 1 << 20
PARTS = ("scheduler", "tracing", "metrics", "ipc", "device", "loop")


class InstantDevice:
    """Has every result ready while `answers`; claims 5 ms per graph and 1 ms more per lane."""

    completion_fd = -1

    def __init__(self) -> None:
        self.limits = DeviceLimits(CONTEXT, CONTEXT, 16, 1000, 64)
        self.shapes = (
            *(GraphShape(GraphKind.PREFILL, 1, prefill_capacity=size) for size in (64, 128, 256, 512)),
            *(GraphShape(GraphKind.DECODE, size) for size in (1, 2, 4, 8, 16)),
        )
        self._left: dict[int, int] = {}
        self._results: collections.deque[FrameResult] = collections.deque()
        self.answers = True

    def prepare(self, progress: Callable[[str, float], None]) -> None:
        progress("ready", 1.0)

    def match_prefix(self, prompt: list[int]) -> int:
        return 0

    def open_request(
        self, slot: int, prompt: list[int], max_output_tokens: int, sampling: SamplingParameters, **_: Any
    ) -> None:
        self._left[slot] = len(prompt)

    def copy_proposals(self, slot: int) -> int:
        return 0

    def close_request(self, slot: int) -> None:
        self._left.pop(slot, None)

    def submit(self, frame: Frame) -> None:
        now_ns = time.monotonic_ns()
        lanes = []
        for lane in frame.lanes:
            consumed = min(self._left[lane.slot], lane.query_length)
            self._left[lane.slot] -= consumed
            lanes.append(LaneResult(consumed, () if self._left[lane.slot] else (7,)))
        took_ns = (5 + len(lanes)) * 1_000_000
        self._results.append(FrameResult(frame.fence, now_ns, now_ns, took_ns, tuple(lanes)))

    def collect(self) -> FrameResult | None:
        return self._results.popleft() if self.answers and self._results else None

    def free_pages(self) -> int:
        return CONTEXT

    def used_pages(self) -> int:
        return 0

    def free_snapshot_rows(self) -> int:
        return 0

    def busy_ns(self) -> int:
        return 0

    def shut_down(self, abandon: bool) -> None:
        """Nothing runs."""


class Stopwatch:
    """Adds the time spent in wrapped calls to their part."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = collections.defaultdict(int)

    def wrap(self, owner: Any, name: str, part: str) -> None:
        call = getattr(owner, name)

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent[part] += time.perf_counter_ns() - began

        setattr(owner, name, timed)


def watch(worker: Worker, journal: JournalWriter, server: EngineServer) -> Stopwatch:
    """Time every call out of the loop by the part that it belongs to."""
    stopwatch = Stopwatch()
    core = worker.core
    for name in ("advance_to", "complete", "plan", "commit", "published_output", "admit"):
        stopwatch.wrap(core.scheduler, name, "scheduler")
    stopwatch.wrap(planning, "plan_committed", "tracing")
    stopwatch.wrap(completion, "_completed", "tracing")
    for name in ("append", "sync_if_due"):
        stopwatch.wrap(journal, name, "tracing")
    for name in ("planned", "executed", "requests", "refresh", "first_output", "next_output", "queued", "ended"):
        stopwatch.wrap(core.metrics, name, "metrics")
    for name in ("receive", "send", "probe"):
        stopwatch.wrap(server, name, "ipc")
    for name in ("submit", "collect"):
        stopwatch.wrap(core.device, name, "device")
    return stopwatch


def measure(directory: str, lanes: int, plans: int) -> list[dict[str, float]]:
    """Microseconds per plan and part, one row per plan with all lanes decoding."""
    settings = Settings(data_dir=directory, database="sqlite://", threads=1)
    settings.run_dir.mkdir(parents=True)
    settings.journal_dir.mkdir(parents=True)
    policy = PolicyConfig()
    start = EngineStart(
        settings=settings, run_id="bench", endpoint=settings.engine_endpoint, policy_version=1,
        coefficients=policy.as_dict(),
    )  # fmt: skip
    rows: list[dict[str, float]] = []
    with (
        EngineServer(start.endpoint) as server,
        MetricsWriter(settings.engine_metrics_path) as metrics,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as client,
    ):
        client.set(zmq.LINGER, 0)
        client.connect(start.endpoint)
        journal = JournalWriter(settings.journal_dir, run_id="bench", segment_bytes=64 << 20, budget_bytes=1 << 30)
        device = InstantDevice()
        worker = build_worker(start, policy, "m", device, journal, server, metrics, time.monotonic_ns)
        stopwatch = watch(worker, journal, server)
        for number in range(lanes):
            now_ns = time.monotonic_ns()
            request = Submit(f"r{number}", "m", [5] * 32, plans * 4, Sampling(0.0), [], False, now_ns, 0)
            client.send(encode(request))
        while len(rows) < plans:
            row = one_plan(worker, device, stopwatch, lanes)
            if row is not None:
                rows.append(row)
            while client.poll(0):
                client.recv()
        journal.close()
    return rows


def one_plan(worker: Worker, device: InstantDevice, stopwatch: Stopwatch, lanes: int) -> dict[str, float] | None:
    """Two iterations; None while not every lane decodes yet."""
    stopwatch.spent.clear()
    before = worker.core.last_fence
    device.answers = True
    began = time.perf_counter_ns()
    worker.step()
    device.answers = False
    worker.step()
    whole = time.perf_counter_ns() - began
    core = worker.core
    if core.last_fence != before + 1 or not core.in_flight or len(core.in_flight[-1].plan.lanes) != lanes:
        return None
    parts = {part: stopwatch.spent[part] / 1e3 for part in PARTS}
    parts["loop"] = whole / 1e3 - sum(parts.values())
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=8, choices=(1, 2, 4, 8, 16))
    parser.add_argument("--plans", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(directory, options.lanes, options.plans)
    table = Table(title=f"engine time per plan, {options.lanes} lanes, {len(rows)} plans")
    for column in ("part", "median µs", "p99 µs", "mean µs"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for row in rows:
        row["all but device"] = sum(row.values()) - row["device"]
    for part in (*PARTS, "all but device"):
        values = sorted(row[part] for row in rows)
        numbers = (statistics.median(values), values[int(len(values) * 0.99)], statistics.fmean(values))
        table.add_row(part, *(f"{number:.1f}" for number in numbers))
    Console().print(table)


if __name__ == "__main__":
    main()
