"""What the recorder spends on a plan: its CPU from the journal into the database, part by part.

    python benchmarks/bench_recorder.py [--plans 6000] [--lanes 8] [--rounds 5] [--batch N] [--database URL]
                                        [--objects] [--no-log] [--json]

The journal holds one frame for each worker iteration, as when serving with two graphs in flight: a commit with its
lanes and runners-up, the completion of the plan before, the publication of the one before that, and the decision log's
calls (`--no-log`: without these). The real reader and sink carry it over, in this thread, in batches as the pump makes
them. Each round begins with an empty SQLite file; with `--database`, an empty PostgreSQL database, it adds a run to
that (the server's processes are not counted).

Parts: read (poll and checksum), decode (bytes to records), map (records to rows, with the roll-up's sums and the
checks), log (compressing the decision log), write by table, roll-up (plan_minutes), commit, and the rest (transaction,
offset, savepoint, letting go of the records). `read` and `decode` are measured by reading alone, the others by clocks
inside one delivery. `--objects` reads packed plans as objects, which is the slow twin of reading them column by column.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from service.journal import calls
from service.journal.packed import LAYOUT, LAYOUTS, decode_packed, decode_records
from service.journal.reader import Batch, Decode, JournalReader
from service.journal.records import (
    LaneOutcome,
    OutputPublished,
    PackedPlan,
    PlanCompleted,
    Record,
    RequestAdmitted,
    RequestArrived,
    RunStarted,
    SchedulerCalls,
    ShapeRecord,
    encoder,
)
from service.journal.writer import JournalWriter
from service.recorder.copying import PostgresqlWriter
from service.recorder.decision_log import LogChunks
from service.recorder.process import collect_rarely
from service.recorder.pump import BATCH_RECORDS
from service.recorder.sql_sink import SqlSink
from service.recorder.staging import Staging
from service.recorder.statements import SqliteWriter
from service.store.database import open_database, upgrade

MS = 1_000_000
_LANE = struct.Struct("<7qd")
_DETAIL = struct.Struct("<q6d")
"""Rows of lanes and their details, see service.journal.packed."""
_COLUMNS = LAYOUTS[LAYOUT].candidate.columns
_CANDIDATE = struct.Struct("<" + "".join("d" if name.endswith("*") else "q" for name in _COLUMNS))
KINDS = ("decode", "speculative", "prefill", "mixed")
WRITES = ("plans", "plan_lanes", "plan_alternatives", "decision_log")
PARTS = ("read", "decode", "map", "log", *(f"write {name}" for name in WRITES), "change", "roll-up", "commit", "rest")


def opening(run_id: str, names: list[str]) -> list[Record]:
    """A run's first records: its start, and every request."""
    now_ns = time.time_ns()
    records: list[Record] = [
        RunStarted(run_id, now_ns, 0, "host", "0", "model", "cpu", "digest", {"port": 8000}, [shape(0, 8)], 1)
    ]
    for slot, name in enumerate(names):
        records.append(RequestArrived(name, "model", 0, 400_000, 12, 1 << 20, None, None, None))
        records.append(RequestAdmitted(name, slot, 1, 1000, 0))
    return records


def shape(kind: int, lanes: int) -> ShapeRecord:
    """One of four kinds of graph for `lanes` lanes."""
    depth = 3 if kind == 1 else 0
    prefill = 64 if kind >= 2 else 0
    return ShapeRecord(KINDS[kind], lanes, depth, depth + 1, lanes * (depth + 1), prefill, depth > 0, "none")


def graphs(lanes: int) -> msgspec.Raw:
    """The catalog's part that a plan names, encoded: each kind for all lanes, then for half of them."""
    sizes = [(kind, size) for size in (lanes, max(1, lanes // 2)) for kind in range(len(KINDS))]
    entries = [(place, f"{KINDS[kind]}:B{size}", shape(kind, size)) for place, (kind, size) in enumerate(sizes)]
    return msgspec.Raw(encoder.encode(entries))


def _packed(**values: float) -> bytes:
    """A candidate; columns that are not named are 0."""
    return _CANDIDATE.pack(*[values.get(name.removesuffix("*"), 0) for name in _COLUMNS])


def committed(fence: int, names: list[str], shapes: msgspec.Raw) -> PackedPlan:
    """A plan of all requests, with the best of three other kinds and a second of its own, as the engine writes it."""
    lanes, kind, step = len(names), int(fence % 7 == 0), fence % 100 / 7
    at_ns, rows = fence * 20 * MS, 1 + 3 * kind
    submitted = [
        (kind, -1, lanes),
        *(((kind + n) % 4 + 4 * (n % 2 == 0), -1, lanes // (2 - n % 2)) for n in range(1, 5)),
    ]
    candidates = [
        _packed(
            graph=graph, following=following, known=1, barred=int(number > 2) * 2, lanes=count, horizon_ns=20 * MS,
            horizon_ms=21.5 + step, score=3.5 + step - number / 8, token_value=60.0 + step, delivery_value=4.0,
            age_relief=1.5, terminal_relief=0.125 * step, wait_cost=0.25, logical_rows=count, physical_rows=count,
            hash=fence, selected_ns=20 * MS, observed_ns=at_ns - 7 * MS, cost_state=1,
        )
        for number, (graph, following, count) in enumerate(submitted)
    ]  # fmt: skip
    slots = [slot for _, _, count in submitted for slot in range(count)]
    return PackedPlan(
        LAYOUT, fence, at_ns, at_ns - MS, 55_500, 0, fence % 2, 3, 1, 0.5, 0.25, 6, lanes, int(step * MS),
        (step, 1.5, 0.0, 0.5, 0.25, 0.0, 1.5), shapes, names, struct.pack(f"<{len(slots)}q", *slots),
        b"".join(_LANE.pack(slot, 1, 7, rows, rows, 0, kind - 1, 1.0 + step / 20) for slot in range(lanes)),
        b"".join(_DETAIL.pack(1, 2.5 + step, 0.5, 12.0 + slot + step, 60.0, 64.0 + slot, 0.0) for slot in range(lanes)),
        b"".join(candidates),
    )  # fmt: skip


def completed(fence: int, lanes: int) -> PlanCompleted:
    """The plan's end: one token for each lane, device times over a few buckets."""
    at_ns, device_ns = fence * 20 * MS, 14 * MS + fence % 9 * MS
    outcomes = [LaneOutcome(lane, 0, 1, 0, 3 * (fence % 7 == 0), 0) for lane in range(lanes)]
    return PlanCompleted(
        fence, at_ns + MS, at_ns + MS + device_ns, "completed", device_ns, device_ns + MS, 0, 18 * MS, outcomes
    )  # fmt: skip


def logged(fence: int, lanes: int) -> SchedulerCalls:
    """The calls of one iteration: the plan before is completed, this one committed, the one before that published."""
    at_ns, did = fence * 20 * MS, bytes((1, 0, 0, 1)) * lanes
    done = [calls.COMPLETE, fence - 1, 14 * MS + fence % 9 * MS, 15 * MS, 0, did, [], None, None]
    entries = [at_ns, done, [calls.COMMIT, fence], at_ns + MS, [calls.PUBLISHED, fence - 2, *range(lanes)]]
    return SchedulerCalls(fence * 5, 5, fence, fence, at_ns, calls.encoder.encode(entries))


def frames(names: list[str], plans: int, log: bool) -> Iterator[list[Record]]:
    """One frame for each iteration; with the decision log's calls if `log`."""
    lanes = len(names)
    shapes = graphs(lanes)
    for fence in range(1, plans + 3):
        frame: list[Record] = []
        if 1 <= fence - 1 <= plans:
            frame.append(completed(fence - 1, lanes))
        if fence <= plans:
            frame.append(committed(fence, names, shapes))
        if 1 <= fence - 2 <= plans:
            frame.append(OutputPublished(fence - 2, (fence * 20 + 1) * MS, list(range(lanes))))
        if log:
            frame.append(logged(fence, lanes))
        yield frame


def write_journal(directory: pathlib.Path, run_id: str, names: list[str], plans: int, log: bool) -> None:
    """A journal of one run."""
    writer = JournalWriter(directory, run_id=run_id, segment_bytes=64 << 20, budget_bytes=1 << 30)
    writer.append(opening(run_id, names), 0)
    for fence, frame in enumerate(frames(names, plans, log), 1):
        writer.append(frame, min(fence, plans))
    writer.close()


class Clocks:
    """CPU time of this thread by part; the parts inside another are taken out of it."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = defaultdict(int)
        self._inner = 0

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        outer, self._inner = self._inner, 0
        began = time.thread_time_ns()
        yield
        whole = time.thread_time_ns() - began
        self.spent[name] += whole - self._inner
        self._inner = outer + whole

    def around(self, owner: Any, method: str, name: str) -> None:
        """Measure each call of a method; its third argument stands for {} in the part's name."""
        real = getattr(owner, method)

        def measured(*arguments: Any) -> Any:
            with self.part(name.format(*arguments[2:3])):
                return real(*arguments)

        setattr(owner, method, measured)


def deliver(reader: JournalReader, sink: SqlSink, batch: int) -> bool:
    """One transaction of about `batch` records; False at the journal's end."""
    items: list[Batch] = []
    count = 0
    while count < batch and (item := reader.poll()) is not None:
        assert isinstance(item, Batch), item
        items.append(item)
        count += len(item.records)
    if items:
        sink.deliver(items)
    return bool(items)


def read_alone(directory: pathlib.Path, payloads: list[bytes], decode: Decode) -> dict[str, float]:
    """CPU of reading the journal and of decoding its frames, in ns."""
    reader = JournalReader(directory, decode=decode)
    began = time.thread_time_ns()
    items = []
    while isinstance(item := reader.poll(), Batch):
        items.append(item)
    whole = time.thread_time_ns() - began
    reader.close()
    began = time.thread_time_ns()
    for payload in payloads:
        decode(payload)
    decoding = time.thread_time_ns() - began
    return {"read": whole - decoding, "decode": decoding}


@contextlib.contextmanager
def measured_parts(clocks: Clocks, writer: type, engine: sa.Engine) -> Iterator[None]:
    """Clocks around the parts of a delivery."""
    around = [
        (SqlSink, "deliver", "rest"), (Staging, "__init__", "map"), (Staging, "write", "map"),
        (LogChunks, "rows", "log"), (writer, "insert", "write {}"), (writer, "change", "change"),
        (writer, "add_minutes", "roll-up"), (engine.dialect, "do_commit", "commit"),
    ]  # fmt: skip
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in around]
    for owner, name, part in around:
        clocks.around(owner, name, part)
    try:
        yield
    finally:
        for owner, name, method in kept:
            setattr(owner, name, method)


def carry(directory: pathlib.Path, url: str, batch: int, decode: Decode, clocks: Clocks | None) -> dict[str, int]:
    """The journal into the database; ns of this thread's CPU, of the process's, and of wall time."""
    engine = open_database(url)
    reader = JournalReader(directory, decode=decode)
    sink = SqlSink(engine, reader.journal_id)
    reader.position = sink.resume()
    writer = PostgresqlWriter if engine.dialect.name == "postgresql" else SqliteWriter
    began = (time.thread_time_ns(), time.process_time_ns(), time.perf_counter_ns())
    with measured_parts(clocks, writer, engine) if clocks else contextlib.nullcontext():
        while deliver(reader, sink, batch):
            pass
    ended = (time.thread_time_ns(), time.process_time_ns(), time.perf_counter_ns())
    reader.close()
    engine.dispose()
    names = ("CPU", "process CPU", "wall")
    return {name: now - then for name, then, now in zip(names, began, ended, strict=True)}


def measure(options: argparse.Namespace, round_: int) -> dict[str, float]:
    """One round: a journal carried over twice, once for the whole and once for its parts. µs per plan."""
    decode = decode_records if options.objects else decode_packed
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        found: dict[str, float] = {}
        for parts in (False, True):
            directory = folder / f"journal-{parts}"
            run_id = f"bench-{time.time_ns()}-{round_}"
            names = [f"{run_id}-{lane}" for lane in range(options.lanes)]
            write_journal(directory, run_id, names, options.plans, options.log)
            url = options.database or f"sqlite:///{folder / f'{parts}.db'}"
            upgrade(url)
            clocks = Clocks() if parts else None
            spent = carry(directory, url, options.batch, decode, clocks)
            if clocks is None:
                found.update(spent)
            else:
                payloads = [encoder.encode(frame) for frame in frames(names, options.plans, options.log)]
                found.update({**read_alone(directory, payloads, decode), **clocks.spent})
    return {name: ns / options.plans / 1e3 for name, ns in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=8, choices=(1, 2, 4, 8, 16))
    parser.add_argument("--plans", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=BATCH_RECORDS, help="records in a transaction")
    parser.add_argument("--database", help="an empty PostgreSQL database; SQLite in a temporary file by default")
    parser.add_argument("--objects", action="store_true", help="read packed plans as objects, the slow twin")
    parser.add_argument("--no-log", dest="log", action="store_false", help="leave the decision log out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    collect_rarely()
    load = os.getloadavg()[0]
    rounds = [measure(options, number) for number in range(options.rounds)]
    parts = ("CPU", "process CPU", "wall", *PARTS)
    rows = [
        {"part": part, "best_us": min(v), "median_us": statistics.median(v), "worst_us": max(v)}
        for part in parts
        for v in [[row.get(part, 0.0) for row in rounds]]
    ]
    if options.json:
        print(json.dumps(rows))
        return
    where = "PostgreSQL" if options.database else "SQLite"
    title = (
        f"CPU µs per plan, {where}, {options.lanes} lanes, {options.plans} plans, {options.batch} records a transaction"
    )
    table = Table(title=f"{title}, {options.rounds} rounds; load {load:.1f}", min_width=60)
    table.add_column("part")
    for column in ("best", "median", "worst"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(str(row["part"]), *(f"{row[f'{column}_us']:.1f}" for column in ("best", "median", "worst")))
    Console().print(table)


if __name__ == "__main__":
    main()
