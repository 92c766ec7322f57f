"""What tracing one plan costs: the engine's journal appends, and the recorder's CPU from journal to database.

    python benchmarks/bench_trace_path.py [--lanes 8] [--plans 5000] [--rounds 3] [--database URL]

Each plan is two journal frames, as when serving: one with its commit, one with its completion and publication. The
recorder's part is read, decode, stage, execute and commit in batches as its pump makes them, in this thread and without
its waiting, so its CPU time is comparable between machines under load; wall time holds the database's share too. The
database is a new SQLite file for each round, or `--database`: an empty PostgreSQL database, to which each round adds a
run. PostgreSQL's own processes are not in the CPU column.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from service.journal.reader import Batch, JournalReader
from service.journal.records import (
    AlternativeRecord,
    LaneOutcome,
    LaneRecord,
    OutputPublished,
    PartsRecord,
    PlanCommitted,
    PlanCompleted,
    Record,
    RequestAdmitted,
    RequestArrived,
    RunStarted,
    ShapeRecord,
)
from service.journal.writer import JournalWriter
from service.recorder.pump import BATCH_RECORDS
from service.recorder.sql_sink import SqlSink
from service.store.database import open_database, upgrade

MS = 1_000_000
ALTERNATIVES = 4
PARTS = PartsRecord(60.0, 4.0, 1.5, 0.0, 0.25, 21.5)


def opening(run_id: str, names: list[str]) -> list[Record]:
    """A run's first records: its start, and every request."""
    shape = ShapeRecord("decode", 8, 0, 1, 8, 0, False, "none")
    now_ns = time.time_ns()
    records: list[Record] = [
        RunStarted(run_id, now_ns, 0, "host", "0", "model", "cpu", "digest", {"port": 8000}, [shape], 1)
    ]
    for slot, name in enumerate(names):
        records.append(RequestArrived(name, "model", 0, 400_000, 12, 1 << 20, None, None, None))
        records.append(RequestAdmitted(name, slot, 1, 1000, 0))
    return records


def frames(fence: int, names: list[str]) -> tuple[list[Record], list[Record]]:
    """One plan's two frames."""
    lanes = len(names)
    shape = ShapeRecord("decode", lanes, 0, 1, lanes, 0, False, "none")
    at_ns = fence * 20 * MS
    rows = [
        LaneRecord(name, slot, 1, "decode", 0, 1, 1, None, 2.5, 0.5, 12.0, 60.0, 1.0, 0.0, 64.0)
        for slot, name in enumerate(names)
    ]
    others = [
        AlternativeRecord(
            rank, shape, "rate", 1.25, PARTS, 0.1, None, None, lanes, names[: lanes // 2], 9 * MS, "fresh", "none"
        )
        for rank in range(1, ALTERNATIVES + 1)
    ]
    committed = PlanCommitted(
        fence, at_ns, shape, "ordinary", "rate", 3.5, 0.5, PARTS, 20 * MS, 7 * MS, "fresh", lanes, lanes, 0.25, 6,
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.5, 3, fence % 2, 1, 55.5, None, None, rows, others,
    )  # fmt: skip
    outcomes = [LaneOutcome(lane, 0, 1, 0) for lane in range(lanes)]
    completed = PlanCompleted(
        fence, at_ns + MS, at_ns + 18 * MS, "completed", 17 * MS, 18 * MS, 0, 18 * MS, outcomes
    )  # fmt: skip
    return [committed], [completed, OutputPublished(fence, at_ns + 19 * MS, list(range(lanes)))]


def write_journal(directory: pathlib.Path, run_id: str, names: list[str], plans: int) -> list[float]:
    """Wall µs of each plan's two appends. Syncing is left to the keeper's thread, as when serving."""
    writer = JournalWriter(directory, run_id=run_id, segment_bytes=64 << 20, budget_bytes=1 << 30)
    writer.append(opening(run_id, names), 0)
    spent = []
    for fence in range(1, plans + 1):
        commit, rest = frames(fence, names)
        began = time.perf_counter_ns()
        writer.append(commit, fence)
        writer.append(rest, fence)
        writer.sync_if_due(time.monotonic_ns())
        spent.append((time.perf_counter_ns() - began) / 1e3)
    writer.close()
    return spent


def record(directory: pathlib.Path, url: str, plans: int) -> tuple[float, float]:
    """CPU and wall µs per plan, from the journal into the database."""
    engine = open_database(url)
    reader = JournalReader(directory)
    sink = SqlSink(engine, reader.journal_id)
    reader.position = sink.resume()
    reader.run_id = sink.run_id
    cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
    while deliver_batch(reader, sink):
        pass
    cpu_ns, wall_ns = time.thread_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns
    reader.close()
    engine.dispose()
    return cpu_ns / plans / 1e3, wall_ns / plans / 1e3


def deliver_batch(reader: JournalReader, sink: SqlSink) -> bool:
    """One transaction of about BATCH_RECORDS records; False at the journal's end."""
    items: list[Batch] = []
    count = 0
    while count < BATCH_RECORDS and (item := reader.poll()) is not None:
        assert isinstance(item, Batch), item
        items.append(item)
        count += len(item.records)
    if items:
        sink.deliver(items)
    return bool(items)


def measure(database: str | None, lanes: int, plans: int, round_: int) -> dict[str, float]:
    """One round's numbers."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run_id = f"bench-{time.time_ns()}-{round_}"
        url = database or f"sqlite:///{folder / 'helios.db'}"
        upgrade(url)
        appends = write_journal(folder / "journal", run_id, [f"request-{lane}" for lane in range(lanes)], plans)
        cpu, wall = record(folder / "journal", url, plans)
    return {
        "journal appends, median": statistics.median(appends),
        "journal appends, p99": sorted(appends)[int(len(appends) * 0.99)],
        "recorder, CPU": cpu,
        "recorder, wall": wall,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=8, choices=(1, 2, 4, 8, 16))
    parser.add_argument("--plans", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", help="an empty PostgreSQL database; SQLite in a temporary file by default")
    options = parser.parse_args()
    rounds = [measure(options.database, options.lanes, options.plans, n) for n in range(options.rounds)]
    where = "PostgreSQL" if options.database else "SQLite"
    table = Table(title=f"µs per plan, {where}, {options.lanes} lanes, {options.plans} plans, {options.rounds} rounds")
    columns: tuple[tuple[str, Callable[[list[float]], float]], ...] = (
        ("best", min),
        ("median", statistics.median),
        ("worst", max),
    )
    table.add_column("part")
    for title, _ in columns:
        table.add_column(title, justify="right")
    for part in rounds[0]:
        values = [row[part] for row in rounds]
        table.add_row(part, *(f"{of(values):.1f}" for _, of in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
