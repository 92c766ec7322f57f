"""Rows of a trace for tests of guards: only what matters is said, the rest is filled in."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa

from service.store.engines import write_transaction
from service.store.partitions import has_days, utc_day
from service.store.tables import engine_runs, plan_lanes, plan_minutes, plans, requests

T0 = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def at(ms):
    """The time so many ms after T0."""
    return T0 + dt.timedelta(microseconds=round(ms * 1000))


def filled(table, **given):
    """A row of `table` with something in every column that needs it."""
    empty = {int: 0, float: 0.0, str: "", bool: False, dict: {}}
    row = {}
    for column in table.columns:
        if column.name not in given and not column.nullable and not column.server_default:
            kind = dict if isinstance(column.type, sa.JSON) else column.type.python_type
            row[column.name] = T0 if kind is dt.datetime else empty[kind]
    return {**row, **given}


class Trace:
    """Runs, requests and plans, which `write` writes. `skew_ms`: the run's monotonic clock at T0."""

    def __init__(self):
        self.rows = {}
        self.skew = {}
        self.fences = {}
        self.minutes = {}

    def run(self, run_id, skew_ms=1_000_000, started=-7_200_000, ended=None):
        self.skew[run_id], self.fences[run_id] = skew_ms, 0
        wall_ns = (at(started) - EPOCH) // dt.timedelta(microseconds=1) * 1000
        self._add(
            engine_runs,
            run_id=run_id,
            started_at=at(started),
            ended_at=None if ended is None else at(ended),
            started_wall_ns=wall_ns,
            started_monotonic_ns=round((started + skew_ms + 10_000_000) * 1e6),
        )

    def ns(self, run_id, ms):
        """The run's monotonic ns so many ms after T0."""
        return round((ms + self.skew[run_id] + 10_000_000) * 1e6)

    def request(self, run_id, request_id, arrived, first=None, finished=None, reason=None):
        self._add(
            requests,
            run_id=run_id,
            request_id=request_id,
            arrived_at=at(arrived),
            first_output_at=None if first is None else at(first),
            finished_at=None if finished is None else at(finished),
            finish_reason=reason or (None if finished is None else "stop"),
        )

    def plan(self, run_id, committed, completed=None, *, tokens=0, device_ms=1.0, lanes=(), outcome=None):
        """`lanes`: (request_id, published ms or None)."""
        fence = self.fences[run_id] = self.fences[run_id] + 1
        outcome = outcome or ("in_flight" if completed is None else "completed")
        row = {"run_id": run_id, "fence": fence, "committed_at": at(committed), "outcome": outcome, "kind": "decode"}
        row |= {"output_tokens": tokens, "device_ms": device_ms}
        row["completed_at"] = None if completed is None else at(completed)
        row["recorded_on"] = utc_day(at(committed))
        self._add(plans, **row)
        for lane, (request_id, published) in enumerate(lanes):
            ns = None if published is None else self.ns(run_id, published)
            key = {"run_id": run_id, "fence": fence, "lane": lane, "recorded_on": row["recorded_on"]}
            self._add(plan_lanes, **key, request_id=request_id, published_ns=ns, delivered=ns is not None)
        if outcome == "completed":
            self._count(run_id, at(completed), tokens, device_ms)

    def write(self, store):
        """What is new, and the roll-up of everything so far, as the recorder keeps it."""
        with write_transaction(store) as connection:
            connection.execute(plan_minutes.delete())
            for (run_id, minute), (count, device_ms, tokens) in self.minutes.items():
                sums = {"plans": count, "device_ms_sum": device_ms, "output_tokens": tokens}
                self._add(plan_minutes, run_id=run_id, minute=minute, **sums)
            for table, rows in self.rows.items():
                _insert(connection, table, rows)
        self.rows.clear()

    def _count(self, run_id, completed, tokens, device_ms):
        key = run_id, completed.replace(second=0, microsecond=0)
        count, busy, out = self.minutes.get(key, (0, 0.0, 0))
        self.minutes[key] = count + 1, busy + device_ms, out + tokens

    def _add(self, table, **given):
        self.rows.setdefault(table, []).append(filled(table, **given))


def _insert(connection, table, rows):
    """With the day where the database keeps days."""
    days = has_days(connection) and "recorded_on" in rows[0]
    columns = [sa.column(c.name, c.type) for c in table.columns if c.name in rows[0]]
    columns += [sa.column("recorded_on", sa.Date)] if days else []
    names = [column.name for column in columns]
    told = sa.table(table.name, *columns)
    connection.execute(told.insert(), [{name: row[name] for name in names} for row in rows])
