"""The engine's own time: per plan over a device that answers at once, and beside real programs on a CPU.

    python benchmarks/bench_engine_loop.py [--lanes 8 16 32] [--plans 2000]
        [--served byte-model:16 byte-model:32 smollm2-135m-instruct:8] [--prompt-tokens 32] [--tokens 384]
        [--draft-tokens 0] [--switch-interval 5] [--cpu]

First part: everything counted is the engine's own work: scheduler, tracing, metrics, connection, and the loop around
them. Each plan is two iterations, as when serving: the one that completes, plans and publishes, and the one that
writes down what was published. Second part (MODEL:STREAMS): the same loop over the CPU device, asleep between its
iterations as the engine's process is; greedy streams that all arrive at once. "Outside the model" is what the
programs' thread does besides hidden states, logits and drafts: inputs, row layout, sampling, outputs. A stage is
"decode" while every stream has a lane. The longest iterations and plan calls are over everything after the load. CPU
time is the worker thread's own: what it lacks to wall time, other programs or the programs' thread had.

The journal and the socket are the real ones, in a temporary directory; a client in the same process empties the
socket between iterations, outside the measurement. Wall time is measured, so run it on a quiet machine; or with --cpu,
which takes the CPU time of the thread that each part runs on instead.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import zmq
from engine_loop_watch import ProgramWatch, Stopwatch, clock_ns, use_cpu_time, watch
from rich.console import Console
from rich.table import Table

from gpu.capacity import batch_buckets
from gpu.create import create_device
from gpu.device import Device, DeviceLimits, Frame, FrameResult, LaneResult, SamplingParameters
from gpu.pages import pages_for
from gpu.selfcheck.models import BYTE_MODEL
from scheduler.kernels.loader import load_kernels
from scheduler.plans import Role
from scheduler.policy import PolicyConfig
from scheduler.shapes import GraphKind, GraphShape
from service.engine.rehearsal import rehearse
from service.engine.run import PollWaiter, StopSignal
from service.engine.start import build_worker
from service.engine.worker import Worker
from service.ipc.messages import Sampling, Submit, encode
from service.ipc.server import EngineServer
from service.journal.writer import JournalWriter
from service.model_source import resolve_model
from service.settings import EngineStart, Settings
from service.telemetry.shared import MetricsWriter

CONTEXT = 1 << 20
PARTS = ("scheduler", "tracing", "metrics", "ipc", "device", "loop")
MAX_LANES = 32
LIMIT_S = 600.0


class InstantDevice:
    """Has every result ready while `answers`; claims 5 ms per graph and 1 ms more per lane."""

    completion_fd = -1

    def __init__(self, lanes: int) -> None:
        self.limits = DeviceLimits(CONTEXT, CONTEXT, 16, 1000, 64)
        self.shapes = (
            *(GraphShape(GraphKind.PREFILL, 1, prefill_capacity=size) for size in (64, 128, 256, 512)),
            *(GraphShape(GraphKind.DECODE, size) for size in batch_buckets(lanes)),
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


class Bench:
    """A worker over `device`, its client, and what each iteration took: wall time and its thread's CPU time, µs."""

    def __init__(self, worker: Worker, server: EngineServer, client: zmq.Socket[bytes], stopwatch: Stopwatch) -> None:
        self.worker, self.server, self.stopwatch = worker, server, stopwatch
        self._client = client
        self.iterations_us: list[float] = []
        self.iterations_cpu_us: list[float] = []

    def submit(self, number: int, prompt: list[int], output_tokens: int) -> None:
        """Send a greedy request to the engine."""
        now_ns = time.monotonic_ns()
        request = Submit(f"r{number}", "m", prompt, output_tokens, Sampling(0.0), [], False, now_ns, 0)
        self._client.send(encode(request))

    def step(self) -> float:
        """One iteration; µs."""
        began_cpu, began = time.thread_time_ns(), clock_ns()
        self.worker.step()
        took_us = (clock_ns() - began) / 1e3
        self.iterations_us.append(took_us)
        self.iterations_cpu_us.append((time.thread_time_ns() - began_cpu) / 1e3)
        while self._client.poll(0):
            self._client.recv()
        return took_us


@contextlib.contextmanager
def bench(device: Device, watched: bool = True) -> Iterator[Bench]:
    """A serving engine's parts in a temporary directory; the garbage collector is as in the engine's process.

    Without `watched` there is no stopwatch around any part, which would take time itself.
    """
    policy = PolicyConfig()
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(data_dir=directory, database="sqlite://", threads=1)
        settings.run_dir.mkdir(parents=True)
        settings.journal_dir.mkdir(parents=True)
        start = EngineStart(
            settings=settings, run_id="bench", endpoint=settings.engine_endpoint, policy_version=1,
            coefficients=policy.as_dict(),
        )  # fmt: skip
        with (
            EngineServer(start.endpoint) as server,
            MetricsWriter(settings.engine_metrics_path) as metrics,
            zmq.Context() as context,
            context.socket(zmq.DEALER) as client,
        ):
            client.set(zmq.LINGER, 0)
            client.connect(start.endpoint)
            journal = JournalWriter(settings.journal_dir, run_id="bench", segment_bytes=64 << 20, budget_bytes=1 << 30)
            worker = build_worker(start, policy, "m", device, journal, server, metrics, time.monotonic_ns)
            rehearse(device.shapes)
            stopwatch, watching = watch(worker, journal, server) if watched else (Stopwatch(), contextlib.ExitStack())
            gc.collect()
            gc.freeze()
            with watching:
                yield Bench(worker, server, client, stopwatch)
            journal.close()


def measure_instant(lanes: int, plans: int) -> tuple[list[dict[str, float]], Bench]:
    """Microseconds per plan and part, one row per plan with all lanes decoding."""
    rows: list[dict[str, float]] = []
    device = InstantDevice(lanes)
    with bench(device) as engine:
        for number in range(lanes):
            engine.submit(number, [5] * 32, plans * 4)
        while len(rows) < plans:
            row = one_plan(engine, device, lanes)
            if row is not None:
                rows.append(row)
    return rows, engine


def one_plan(engine: Bench, device: InstantDevice, lanes: int) -> dict[str, float] | None:
    """Two iterations; None while not every lane decodes yet."""
    core, stopwatch = engine.worker.core, engine.stopwatch
    stopwatch.spent_ns.clear()
    before = core.last_fence
    device.answers = True
    whole_us = engine.step()
    device.answers = False
    whole_us += engine.step()
    if core.last_fence != before + 1 or not core.in_flight or len(core.in_flight[-1].plan.lanes) != lanes:
        return None
    parts = {part: stopwatch.spent_ns[part] / 1e3 for part in PARTS}
    return parts | {"loop": whole_us - sum(parts.values())}


def measure_served(name: str, streams: int, options: argparse.Namespace) -> dict[str, float]:
    """Serve all streams to their end on a CPU device. Times in µs."""
    device = create_device(
        BYTE_MODEL if name == BYTE_MODEL.name else resolve_model(name).path,
        decode_batches=batch_buckets(streams),
        max_context=options.prompt_tokens + options.tokens + 1,
        kv_pages=streams * (pages_for(options.prompt_tokens + options.tokens + 1 + options.draft_tokens) + 1),
        draft_head="auto",
        draft_tokens=options.draft_tokens,
    )
    programs = ProgramWatch()
    try:
        device.prepare(lambda _what, _share: None)
        with bench(device) as engine, programs.watching():
            worker_us = serve(engine, device, programs, streams, options)
    finally:
        device.shut_down(abandon=False)
    calls, runs = engine.stopwatch.calls_us, programs.decode_runs(streams)
    return {
        "longest plan call": max(calls["plan"]),
        "longest iteration": max(engine.iterations_us),
        "longest iteration, CPU time": max(engine.iterations_cpu_us),
        "longest submit": max(calls["submit"]),
        "longest collect": max(calls["collect"]),
        "median plan call": statistics.median(calls["plan"]),
        "median iteration": statistics.median(engine.iterations_us),
        "median submit": statistics.median(calls["submit"]),
        "median collect": statistics.median(calls["collect"]),
        "decode, worker's time per plan": statistics.median(worker_us),
        "decode, programs' thread outside the model": statistics.median(run.outside_us for run in runs),
        "decode, of that sampling": statistics.median(run.sampling_us for run in runs),
        "decode, model": statistics.median(run.model_us for run in runs),
        "decode, from one program to the next": statistics.median(programs.gaps_us(streams) or [math.nan]),
        "decode, busy share": programs.busy_share(streams),
    }


def serve(
    engine: Bench, device: Device, programs: ProgramWatch, streams: int, options: argparse.Namespace
) -> list[float]:
    """Step until every stream has ended; the worker's µs for each plan that has all streams in it."""
    core = engine.worker.core
    for number in range(streams):
        prompt = [(number + 7 * place) % 256 for place in range(options.prompt_tokens)]
        engine.submit(number, prompt, options.tokens)
    spent_us, worker_us = 0.0, []
    deadline = time.monotonic() + LIMIT_S
    with StopSignal() as stop:
        wait = PollWaiter(engine.server.socket, device.completion_fd, stop.fd)
        while not core.last_fence or len(core.table) or not engine.worker.drained:
            before = core.last_fence
            spent_us += engine.step()
            if core.last_fence != before:
                lanes = sum(lane.role is Role.DECODE for lane in core.in_flight[-1].plan.lanes)
                programs.lanes_by_fence[core.last_fence] = lanes
                if lanes == streams:
                    worker_us.append(spent_us)
                spent_us = 0.0
            if time.monotonic() > deadline:
                raise RuntimeError(f"{streams} streams have not ended within {LIMIT_S:.0f} s")
            wait(engine.worker.wait_ns())
    return worker_us


def print_instant(lanes: int, plans: int) -> None:
    """The first part's table."""
    rows, engine = measure_instant(lanes, plans)
    for row in rows:
        row["all but device"] = sum(row.values()) - row["device"]
    table = Table(title=f"engine time per plan over an instant device, {lanes} lanes, {len(rows)} plans")
    for column in ("part", "median µs", "p99 µs", "mean µs", "longest µs"):
        table.add_column(column, justify="left" if column == "part" else "right")

    def add(name: str, values: Iterable[float]) -> None:
        ordered = sorted(values)
        numbers = (
            statistics.median(ordered),
            ordered[int(len(ordered) * 0.99)],
            statistics.fmean(ordered),
            ordered[-1],
        )
        table.add_row(name, *(f"{number:.1f}" for number in numbers))

    for part in (*PARTS, "all but device"):
        add(part, (row[part] for row in rows))
    add("plan call", engine.stopwatch.calls_us["plan"])
    add("iteration", engine.iterations_us)
    add("iteration, CPU time", engine.iterations_cpu_us)
    Console().print(table)


def print_served(loads: Sequence[tuple[str, int]], options: argparse.Namespace) -> None:
    """The second part's table: one column for each load."""
    columns = [measure_served(name, streams, options) for name, streams in loads]
    drafts = f", {options.draft_tokens} drafts" if options.draft_tokens else ""
    table = Table(
        title=f"the loop beside real programs: {options.prompt_tokens} + {options.tokens} tokens a stream{drafts}; µs"
    )
    table.add_column("")
    for name, streams in loads:
        table.add_column(f"{name}, {streams} streams", justify="right")
    for figure in columns[0]:
        form = ".1%" if figure.endswith("share") else ".0f"
        table.add_row(figure, *(format(column[figure], form) for column in columns))
    Console().print(table)


def served_load(text: str) -> tuple[str, int]:
    """MODEL:STREAMS."""
    name, _, streams = text.rpartition(":")
    if not name or not streams.isdecimal() or not 1 <= int(streams) <= MAX_LANES:
        raise argparse.ArgumentTypeError(f"{text!r} is not MODEL:STREAMS with 1 to {MAX_LANES} streams")
    return name, int(streams)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="*", default=[8, 16, 32])
    parser.add_argument("--plans", type=int, default=2000)
    parser.add_argument(
        "--served",
        type=served_load,
        nargs="*",
        default=[("byte-model", 16), ("byte-model", 32), ("smollm2-135m-instruct", 8)],
        metavar="MODEL:STREAMS",
    )
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("--draft-tokens", type=int, default=0)
    parser.add_argument(
        "--switch-interval",
        type=float,
        default=sys.getswitchinterval() * 1e3,
        metavar="MS",
        help="how long Python lets one thread compute while another waits; an engine leaves it as it is",
    )
    parser.add_argument("--cpu", action="store_true", help="take threads' CPU time in place of wall time")
    options = parser.parse_args()
    if options.cpu:
        use_cpu_time()
    sys.setswitchinterval(options.switch_interval / 1e3)
    if any(not 1 <= lanes <= MAX_LANES for lanes in options.lanes):
        parser.error(f"--lanes are 1 to {MAX_LANES}")
    load_kernels()
    for lanes in options.lanes:
        print_instant(lanes, options.plans)
    if options.served:
        print_served(options.served, options)


if __name__ == "__main__":
    main()
