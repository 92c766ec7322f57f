"""What the journal costs the engine: CPU time per plan of building, encoding, writing and syncing its records.

    python benchmarks/bench_journal.py [--lanes 8] [--plans 2000] [--rate 1000] [--rounds 3] [--json]

The whole worker loop runs over a device that answers at once, with the real scheduler, journal and socket, so that what
the journal does is as cold as when serving. "Hot" plans follow each other at once; "paced" ones begin --rate times a
second with sleep between them. Times are CPU times of the thread that spends them, less what taking them costs; other
load still makes caches colder. "Append" is timed whole in one half of the rounds and its parts in the other. The
keeper's thread syncs and reserves beside the engine; its time is added all the same. Taking a time costs as much as
some stages do; so the whole is measured a second way, as the difference between windows of plans with a journal and
without, in turn. The decision log's records are in the first and not in the second.

What a segment's end costs is timed apart, and as wall time, since waiting is what matters there: the keeper's
reservation, and appends that go on to the next segment, where a spare waits and where none does.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import math
import os
import pathlib
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from bench_engine_loop import Bench, InstantDevice, bench
from rich.console import Console
from rich.table import Table

from service.engine import completion, publication
from service.engine.plan_records import PlanRecords
from service.journal import files, writer
from service.journal.none import NoJournal
from service.journal.records import OutputPublished, Record, encoder
from service.journal.writer import JournalWriter


class _Encoder:
    """The writer's encoder, with methods that can be wrapped."""

    encode = staticmethod(encoder.encode)
    encode_into = staticmethod(encoder.encode_into)


WHOLE = (
    (PlanRecords, "record", "build: plan"),
    (completion, "_outcomes", "build: completion"),
    (completion, "_completed", "build: completion"),
    (publication, "OutputPublished", "build: publication"),
    (JournalWriter, "append", "append"),
    (JournalWriter, "sync_if_due", "ask for a sync"),
)
PARTS = (
    (_Encoder, "encode_into", "append: encode"),
    (zlib, "crc32", "append: checksum"),
    (os, "pwrite", "append: write"),
)
KEEPER = "keeper: sync, reserve"
ALL = "all"
WINDOW = 20
TARGET_US = 25.0
Samples = dict[str, list[float]]


class Stages:
    """CPU ns of the calling thread by stage, less the clock's own share."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, int] = collections.defaultdict(int)
        self.own_ns = 0

    def timed(self, call: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """`call`, timed."""

        @functools.wraps(call, updated=())
        def wrapper(*arguments: Any, **named: Any) -> Any:
            began_ns = time.thread_time_ns()
            result = call(*arguments, **named)
            self.spent_ns[stage] += time.thread_time_ns() - began_ns - self.own_ns
            return result

        return wrapper

    @contextlib.contextmanager
    def watching(self, calls: tuple[tuple[Any, str, str], ...]) -> Iterator[None]:
        """Within, these calls are timed."""
        with contextlib.ExitStack() as stack:
            for owner, name, stage in calls:
                stack.enter_context(mock.patch.object(owner, name, self.timed(getattr(owner, name), stage)))
            yield


def measure(lanes: int, plans: int, rate: float | None, calls: tuple[tuple[Any, str, str], ...]) -> Samples:
    """CPU µs of each plan with all lanes decoding, by stage. `rate`: plans a second; None: as fast as they come."""
    stages = Stages()
    rows: list[dict[str, int]] = []
    # One size more than is used: so every plan has as many runner-ups as are ever recorded.
    device = InstantDevice(2 * lanes)
    with mock.patch.object(writer, "encoder", _Encoder), stages.watching(calls), bench(device, watched=False) as engine:
        for number in range(lanes):
            engine.submit(number, [5] * 32, plans * 4)
        while not run_plan(engine, device, lanes):
            pass
        stages.own_ns = clock_ns(stages, lambda: run_plan(engine, device, lanes))
        keeper_ns = keeper_cpu_ns()
        due = time.monotonic()
        for _ in range(plans):
            stages.spent_ns.clear()
            if rate is not None:
                due = max(due + 1 / rate, time.monotonic())
                time.sleep(max(0.0, due - time.monotonic()))
            assert run_plan(engine, device, lanes), "every lane decodes until the end"
            rows.append(dict(stages.spent_ns))
        keeper_ns = (keeper_cpu_ns() - keeper_ns) // plans
    return {stage: [row.get(stage, 0) / 1e3 for row in rows] for _, _, stage in calls} | {KEEPER: [keeper_ns / 1e3]}


def measure_difference(lanes: int, plans: int, rate: float | None) -> list[float]:
    """CPU µs that a plan costs the engine's thread more with its journal than without one, by pairs of windows."""
    device = InstantDevice(2 * lanes)
    with bench(device, watched=False) as engine:
        for number in range(lanes):
            engine.submit(number, [5] * 32, plans * 20)
        while not run_plan(engine, device, lanes):
            pass
        engine.worker.core.log = None
        journals = (engine.worker._journal, NoJournal())
        found = []
        for pair in range(plans // WINDOW):
            spent = [0.0, 0.0]
            for without in (pair % 2, 1 - pair % 2):
                engine.worker._journal = journals[without]
                engine.worker.core.traced = not without
                spent[without] = window_us(engine, device, lanes, rate)
            found.append((spent[0] - spent[1]) / WINDOW)
        engine.worker._journal = journals[0]
    return found


def window_us(engine: Bench, device: InstantDevice, lanes: int, rate: float | None) -> float:
    """CPU µs of WINDOW plans."""
    run_plan(engine, device, lanes)  # what the window before left to write
    due, spent_ns = time.monotonic(), 0
    for _ in range(WINDOW):
        if rate is not None:
            due = max(due + 1 / rate, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
        began_ns = time.thread_time_ns()
        run_plan(engine, device, lanes)
        spent_ns += time.thread_time_ns() - began_ns
        engine.worker.core.scheduler._calls.clear()  # of the decision log, which bench_decision_log measures
    return spent_ns / 1e3


def clock_ns(stages: Stages, plan: Callable[[], Any]) -> int:
    """What timing a call takes by itself, as cold as between plans."""
    nothing, taken = stages.timed(lambda: None, "itself"), []
    for _ in range(300):
        plan()
        stages.spent_ns.clear()
        nothing()
        taken.append(stages.spent_ns["itself"])
    return int(statistics.median(taken))


def run_plan(engine: Bench, device: InstantDevice, lanes: int) -> bool:
    """One plan, and the iterations that follow without sleep, as when serving; whether every lane decodes in it."""
    core = engine.worker.core
    before = core.last_fence
    device.answers = True
    engine.step()
    device.answers = False
    while engine.worker.wait_ns() == 0:
        engine.step()
    return core.last_fence == before + 1 and len(core.in_flight[-1].plan.lanes) == lanes


def keeper_cpu_ns() -> int:
    """CPU time of the journal keeper's thread so far."""
    (keeper,) = [thread for thread in threading.enumerate() if thread.name == "journal-keeper"]
    assert keeper.ident is not None
    return time.clock_gettime_ns(time.pthread_getcpuclockid(keeper.ident))


def measure_reservations(segment_bytes: int, segments: int) -> Samples:
    """Wall ms of what a segment's end costs: the keeper, and appends paced at 1,000 a second."""
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        found: Samples = {"keeper: reserve a segment": [time_reservation(directory, segment_bytes) for _ in range(9)]}
        journal = JournalWriter(directory, run_id="bench", segment_bytes=8 << 20, budget_bytes=64 << 20)
        ordinary = found["append within a segment"] = []
        append_paced(journal, segments, ordinary, found.setdefault("append that takes the spare", []))
        with mock.patch.object(files.Keeper, "_make_spare"):
            append_paced(journal, 1, ordinary, [])  # the last spare
            crossings = found.setdefault("append that reserves a short segment", [])
            append_paced(journal, segments, ordinary, crossings)
        journal.close()
    return found


def time_reservation(directory: pathlib.Path, segment_bytes: int) -> float:
    """Wall ms of creating a file whose blocks are all its own."""
    path = directory / "reserved"
    began = time.perf_counter()
    os.close(files._reserved(path, segment_bytes))
    took = (time.perf_counter() - began) * 1e3
    path.unlink()
    return took


def append_paced(journal: JournalWriter, segments: int, ordinary: list[float], crossing: list[float]) -> None:
    """Fill segments; the appends that open the next one go to `crossing`. Wall ms."""
    block: list[Record] = [OutputPublished(1, 1, [1] * 6000)]
    for _ in range(segments):
        number = journal._number
        while journal._number == number:
            time.sleep(0.001)
            began = time.perf_counter()
            journal.append(block, 1)
            took = (time.perf_counter() - began) * 1e3
            (ordinary if journal._number == number else crossing).append(took)
            journal.sync_if_due(time.monotonic_ns())


def collect(options: argparse.Namespace) -> dict[str, Samples]:
    """µs of every plan by way ("hot", "paced") and stage, over all rounds."""
    table: dict[str, Samples] = {}
    for way, rate in (("hot", None), ("paced", options.rate)):
        samples = table[way] = collections.defaultdict(list)
        for _ in range(options.rounds):
            whole = measure(options.lanes, options.plans, rate, WHOLE)
            parts = measure(options.lanes, options.plans, rate, PARTS)
            (keeper_us,) = whole[KEEPER]
            del parts[KEEPER]
            columns = [values for stage, values in whole.items() if stage != KEEPER]
            whole[ALL] = [sum(row) + keeper_us for row in zip(*columns, strict=True)]
            for stage, values in (whole | parts).items():
                samples[stage] += values
    return table


def differences(options: argparse.Namespace) -> dict[str, tuple[float, float, float]]:
    """Median µs by way, and the 95 % interval of the median over all pairs of windows."""
    found = {}
    for way, rate in (("hot", None), ("paced", options.rate)):
        ordered = sorted(measure_difference(options.lanes, options.plans * options.rounds, rate))
        spread = 0.98 * math.sqrt(len(ordered))  # of the median's rank, from the binomial distribution
        low, high = math.floor(len(ordered) / 2 - spread), math.ceil(len(ordered) / 2 + spread)
        found[way] = statistics.median(ordered), ordered[max(0, low)], ordered[min(len(ordered) - 1, high)]
    return found


def summary(table: dict[str, Samples]) -> dict[str, dict[str, float]]:
    """Median and mean by way and stage."""
    ways = {}
    for way, samples in table.items():
        ways[f"{way}, median"] = {stage: statistics.median(values) for stage, values in samples.items()}
        ways[f"{way}, mean"] = {stage: statistics.fmean(values) for stage, values in samples.items()}
    return ways


def show(
    ways: dict[str, dict[str, float]],
    more: dict[str, tuple[float, float, float]],
    reservations: Samples,
    options: argparse.Namespace,
) -> None:
    """The tables."""
    title = f"CPU µs per plan: {options.lanes} lanes, {options.rate:g}/s, {options.rounds} x {options.plans} plans"
    costs = Table(title=title)
    costs.add_column("stage")
    for way in ways:
        costs.add_column(way, justify="right")
    stages = dict.fromkeys([stage for _, _, stage in (*WHOLE, *PARTS)] + [KEEPER, ALL])
    for stage in stages:
        costs.add_row(stage, *(f"{row[stage]:.1f}" for row in ways.values()))
    waits = Table(title=f"wall ms; a whole segment is {options.segment_bytes >> 20} MiB")
    for column in ("", "median", "longest", "times"):
        waits.add_column(column, justify="right" if column else "left")
    for what, values in reservations.items():
        waits.add_row(what, f"{statistics.median(values):.3f}", f"{max(values):.3f}", str(len(values)))
    for way, (median, low, high) in more.items():
        costs.add_row(f"difference, {way}: {median:.1f} ({low:.1f} to {high:.1f})", *[""] * len(ways))
    Console().print(costs, waits, f"target: {TARGET_US:g} µs paced; load average {os.getloadavg()[0]:.1f}")


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--plans", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=1000.0, help="plans a second, when paced")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--segment-bytes", type=int, default=64 << 20)
    parser.add_argument("--segments", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ways, more = summary(collect(options)), differences(options)
    reservations = measure_reservations(options.segment_bytes, options.segments)
    if options.json:
        print(json.dumps({"cpu_us": ways, "difference_us": more, "wall_ms": reservations, "load": os.getloadavg()}))
    else:
        show(ways, more, reservations, options)


if __name__ == "__main__":
    main()
