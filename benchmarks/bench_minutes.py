"""How long the p99 of device time by shape over an hour takes, from the roll-up `plan_minutes`.

    python benchmarks/bench_minutes.py [--shapes 64] [--hours 24] [--rounds 30] [--database URL] [--json]

Fills `plan_minutes` as `--hours` of 1,000 plans a second leave it, each minute with every one of `--shapes` graphs
under two reasons, and asks for the last hour in two ways: the server's own reading (`device_percentiles`) and the
question of docs/sql-cookbook.md over the view `device_histogram`. The database is a new SQLite file, or `--database`:
an empty PostgreSQL database. Each answer is compared with one that is worked out from the same rows in Python. CPU is
that of this process: all of it on SQLite, the client's part on PostgreSQL.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import datetime as dt
import json
import os
import pathlib
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from service.store.buckets import DEVICE_BOUNDS_MS, DEVICE_BUCKETS, device_bucket
from service.store.database import open_database, upgrade, write_transaction
from service.store.rollups import device_percentiles
from service.store.tables import SHAPE_COLUMNS, plan_minutes

PLANS_A_MINUTE = 60_000
NEWEST = dt.datetime(2026, 3, 1, 11, 59, tzinfo=dt.UTC)
"""The hour that the cookbook asks of ends with it."""
COOKBOOK = pathlib.Path(__file__).parents[1] / "docs" / "sql-cookbook.md"
QUESTION = "What was the p99 of device time by shape in this hour?"
Row = dict[str, Any]


def shapes(count: int) -> list[Row]:
    """Graphs of different capacities: a third each of decode, prefill and speculative."""
    found = []
    for number in range(count):
        kind = ("decode", "prefill", "speculative")[number % 3]
        size = number // 3 + 1
        drafts = {"draft_depth": 3, "target_width": 4, "target_rows": 2 * size, "speculation_enabled": True}
        plain = {"draft_depth": 0, "target_width": 1, "target_rows": size, "speculation_enabled": False}
        found.append(
            {
                "kind": kind,
                "batch_capacity": size,
                **(drafts if kind == "speculative" else plain),
                "prefill_capacity": 16 * size if kind == "prefill" else 0,
                "allocation": "none",
                "prompt_rows": 1,
            }
        )
    return found


def minute_rows(minute: dt.datetime, graphs: list[Row], random_: random.Random) -> list[Row]:
    """One minute of PLANS_A_MINUTE plans; device times of a graph lie within some neighbouring buckets."""
    rows = []
    for number, graph in enumerate(graphs):
        typical_ms = 0.4 * (1 + number) ** 0.7
        for reason, share in (("ordinary", 0.97), ("timing_refresh", 0.03)):
            plans = max(1, round(PLANS_A_MINUTE * share / len(graphs)))
            drawn = [typical_ms * random_.lognormvariate(0, 0.15) for _ in range(12)]
            counts = collections.Counter(device_bucket(ms) for ms in drawn for _ in range(plans // 12 + 1))
            rows.append(
                {
                    "minute": minute,
                    "run_id": "run-1",
                    **graph,
                    "reason": reason,
                    "plans": sum(counts.values()),
                    "device_ms_sum": statistics.fmean(drawn) * plans,
                    "device_ms_max": max(drawn),
                    "selected_cost_ms_sum": typical_ms * plans,
                    "output_tokens": 8 * plans,
                    **{name: counts[at] for at, name in enumerate(DEVICE_BUCKETS)},
                }
            )
    return rows


def fill(engine: sa.Engine, graphs: list[Row], hours: int) -> list[Row]:
    """Write the roll-up; returns the rows of the last hour."""
    random_ = random.Random(1)
    minutes = [NEWEST - dt.timedelta(minutes=back) for back in range(60 * hours - 1, -1, -1)]
    last_hour: list[Row] = []
    for start in range(0, len(minutes), 60):
        rows = [row for minute in minutes[start : start + 60] for row in minute_rows(minute, graphs, random_)]
        with write_transaction(engine) as connection:
            connection.execute(plan_minutes.insert(), rows)
        last_hour = rows
    with write_transaction(engine) as connection:
        connection.exec_driver_sql("ANALYZE plan_minutes")
    return last_hour


def expected(rows: list[Row]) -> dict[tuple[Any, ...], int]:
    """The bucket of each shape's p99, by nearest rank."""
    counts: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        sums = counts.setdefault(tuple(row[name] for name in SHAPE_COLUMNS), [0] * len(DEVICE_BUCKETS))
        for at, name in enumerate(DEVICE_BUCKETS):
            sums[at] += row[name]
    found = {}
    for shape, sums in counts.items():
        rank = -(-sum(sums) * 99 // 100)
        running = 0
        for at, count in enumerate(sums):
            running += count
            if running >= rank:
                found[shape] = at
                break
    return found


def cookbook_question() -> str:
    """The SQL of QUESTION."""
    body = COOKBOOK.read_text(encoding="utf-8").split(f"### {QUESTION}\n")[1]
    found = re.search(r"^```sql\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, "the cookbook has the question"
    return found[1]


def timed(rounds: int, ask: Callable[[], object]) -> Row:
    """Wall and CPU milliseconds of the rounds, after one that is not counted."""
    ask()
    wall, cpu = [], []
    for _ in range(rounds):
        began, busy = time.perf_counter(), time.process_time()
        ask()
        wall.append((time.perf_counter() - began) * 1e3)
        cpu.append((time.process_time() - busy) * 1e3)
    median = statistics.median
    return {"best_ms": min(wall), "median_ms": median(wall), "worst_ms": max(wall), "cpu_ms": median(cpu)}


def measure(engine: sa.Engine, rounds: int, answer: dict[tuple[Any, ...], int]) -> list[Row]:
    """Both ways, checked and timed."""
    since = NEWEST - dt.timedelta(minutes=59)
    statement = cookbook_question()

    def by_server() -> list[Row]:
        return device_percentiles(engine, since=since)

    def by_question() -> list[Any]:
        with engine.connect() as connection:
            return list(connection.exec_driver_sql(statement))

    served = {tuple(row[name] for name in SHAPE_COLUMNS): row["device_ms_percentile"] for row in by_server()}
    assert {shape: device_bucket(ms) for shape, ms in served.items()} == answer, "device_percentiles is wrong"
    asked = sorted(bisect.bisect_left(DEVICE_BOUNDS_MS, row[2]) for row in by_question())
    assert asked == sorted(answer.values()), "the cookbook's question is wrong"
    ways: dict[str, Callable[[], object]] = {"device_percentiles": by_server, "cookbook": by_question}
    return [{"database": engine.dialect.name, "way": way, **timed(rounds, ask)} for way, ask in ways.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=64)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--database", help="an empty PostgreSQL database; without it a new SQLite file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.database or f"{folder}/helios.db"
        upgrade(url)
        engine = open_database(url)
        last_hour = fill(engine, shapes(options.shapes), options.hours)
        rows = measure(engine, options.rounds, expected(last_hour))
        engine.dispose()
    load = os.getloadavg()[0]
    if options.json:
        print(json.dumps({"rows_an_hour": len(last_hour), "load": load, "rows": rows}, indent=2))
        return
    print(f"{len(last_hour)} rows of plan_minutes in the hour, {options.hours} hours stored; load {load:.1f}")
    for row in rows:
        times = "  ".join(f"{name} {row[f'{name}_ms']:7.1f}" for name in ("best", "median", "worst", "cpu"))
        print(f"{row['database']:<11} {row['way']:<19} ms: {times}")


if __name__ == "__main__":
    main()
