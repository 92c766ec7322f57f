"""What retention costs: time and CPU of its steps, and how long a writer beside it waits.

    python benchmarks/bench_retention.py [--plans 20000] [--lanes 8] [--database URL] [--one-by-one] [--json]

Fills a new SQLite file (or `--database`: an empty PostgreSQL database) with a run that has ended, every plan with its
lanes and four alternatives; on PostgreSQL into the partitions of its day, or with `--one-by-one` into none, so that
plans are deleted as in the day in which a limit of size falls. Deletes all of it as the recorder does, and meanwhile
writes a row every 10 ms in transactions of its own. The same writer is measured first without any deletion. CPU is
that of this process and of the deleting thread alone: all of it on SQLite, the client's part on PostgreSQL.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import tempfile
import threading
import time
from typing import Any

import sqlalchemy as sa

from service.store.database import open_database, upgrade, write_transaction
from service.store.partitions import PARTITIONED, add_day, has_days
from service.store.retention import Limits, Pruner
from service.store.tables import engine_runs, plan_alternatives, plan_lanes, plans, trace_gaps

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
BEGAN = NOW - dt.timedelta(days=60)
ALTERNATIVES = 4
FILLED_AT_ONCE = 500
Row = dict[str, Any]


def plain_row(table: sa.Table) -> Row:
    """A value for every column that must have one, and numbers for the others."""
    found: Row = {}
    for column in table.columns:
        if isinstance(column.type, sa.Text):
            found[column.name] = "decode"
        elif isinstance(column.type, sa.Float):
            found[column.name] = 1.2345
        elif isinstance(column.type, sa.JSON):
            found[column.name] = ["request-1"]
        elif column.name.endswith("_at"):
            found[column.name] = BEGAN
        else:
            found[column.name] = 1
    return found


def fill(engine: sa.Engine, count: int, lanes: int, day: dt.date | None) -> None:
    """A run of `count` plans at 1,000 a second, long ago; `day`: in whose partitions, None for none."""
    if day is not None:
        _write_into(engine, day)
    with write_transaction(engine) as connection:
        connection.execute(engine_runs.insert(), {**plain_row(engine_runs), "run_id": "run-1"})
    plan, lane, other = plain_row(plans), plain_row(plan_lanes), plain_row(plan_alternatives)
    for start in range(1, count + 1, FILLED_AT_ONCE):
        keys = [{"run_id": "run-1", "fence": fence} for fence in range(start, min(start + FILLED_AT_ONCE, count + 1))]
        with write_transaction(engine) as connection:
            connection.execute(
                plans.insert(),
                [
                    {**plan, **key, "outcome": "completed", "committed_at": BEGAN + key["fence"] * _MILLISECOND}
                    for key in keys
                ],
            )
            for number in range(lanes):
                request = f"request-{number}"
                connection.execute(
                    plan_lanes.insert(), [{**lane, **key, "lane": number, "request_id": request} for key in keys]
                )
            for rank in range(1, ALTERNATIVES + 1):
                connection.execute(plan_alternatives.insert(), [{**other, **key, "rank": rank} for key in keys])


def _write_into(engine: sa.Engine, day: dt.date) -> None:
    """Make a row that does not name its day go to this one."""
    with write_transaction(engine) as connection:
        assert add_day(connection, day)
        for table in PARTITIONED:
            connection.exec_driver_sql(f"ALTER TABLE {table} ALTER COLUMN recorded_on SET DEFAULT '{day}'")


_MILLISECOND = dt.timedelta(milliseconds=1)


def write_until(engine: sa.Engine, stop: threading.Event, waits: list[float]) -> None:
    """A row every 10 ms; `waits` gets the milliseconds of each transaction."""
    row = {"run_id": "writer", "noticed_at": NOW, "reason": "a benchmark's row"}
    while not stop.wait(0.01):
        began = time.perf_counter()
        with write_transaction(engine) as connection:
            connection.execute(trace_gaps.insert(), row)
        waits.append((time.perf_counter() - began) * 1e3)


def beside_writer(engine: sa.Engine, work: Any) -> list[float]:
    """The writer's milliseconds while `work()` runs."""
    stop = threading.Event()
    waits: list[float] = []
    writer = threading.Thread(target=write_until, args=(engine, stop, waits))
    writer.start()
    try:
        work()
    finally:
        stop.set()
        writer.join()
    return sorted(waits)


def prune(engine: sa.Engine, steps: list[Row]) -> None:
    """Delete everything as the recorder does; `steps` gets each step's plans, wall and thread CPU in ms."""
    pruner = Pruner(engine, Limits(30, 0))
    while True:
        began, busy = time.perf_counter(), time.thread_time()
        done = pruner.step(NOW)
        if done.is_nothing:
            return
        wall, cpu = (time.perf_counter() - began) * 1e3, (time.thread_time() - busy) * 1e3
        steps.append({"plans": done.plans, "wall_ms": wall, "cpu_ms": cpu})
        time.sleep(pruner.pause_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=20_000)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--database", help="an empty PostgreSQL database; without it a new SQLite file")
    parser.add_argument("--one-by-one", action="store_true", help="on PostgreSQL: no partition of their day")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.database or f"{folder}/helios.db"
        upgrade(url)
        engine = open_database(url)
        by_day = has_days(engine) and not options.one_by_one
        fill(engine, options.plans, options.lanes, BEGAN.date() if by_day else None)
        alone = beside_writer(engine, lambda: time.sleep(3))
        steps: list[Row] = []
        began = time.perf_counter()
        beside = beside_writer(engine, lambda: prune(engine, steps))
        took = time.perf_counter() - began
        database = engine.dialect.name
        engine.dispose()
    deleted = sum(step["plans"] for step in steps)
    assert deleted == options.plans, "every plan is deleted"
    found = {
        "database": database,
        "load": os.getloadavg()[0],
        "steps": len(steps),
        "step_ms_median": statistics.median(step["wall_ms"] for step in steps),
        "step_ms_worst": max(step["wall_ms"] for step in steps),
        "cpu_us_a_plan": 1e3 * sum(step["cpu_ms"] for step in steps) / deleted,
        "plans_a_second": deleted / took,
        "writer_ms_alone": [statistics.median(alone), alone[int(0.99 * len(alone))], alone[-1]],
        "writer_ms_beside": [statistics.median(beside), beside[int(0.99 * len(beside))], beside[-1]],
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        shown = value if isinstance(value, int | str) else value if isinstance(value, list) else f"{value:.1f}"
        print(f"{name:<17} {[round(one, 1) for one in shown] if isinstance(shown, list) else shown}")


if __name__ == "__main__":
    main()
