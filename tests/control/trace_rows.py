"""Rows of a trace for tests of guards: only what matters is said, the rest is filled in."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa

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
    """Writes runs, requests and plans on one connection. `skew_ms`: the run's monotonic clock at T0."""

    def __init__(self, connection):
        self.connection = connection
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
        row = {
            "run_id": run_id, "fence": fence, "committed_at": at(committed), "outcome": outcome, "output_tokens": tokens,
            "completed_at": None if completed is None else at(completed), "device_ms": device_ms, "kind": "decode",
        }  # fmt: skip
        day = {"recorded_on": utc_day(at(committed))} if has_days(self.connection) else {}
        self._add(plans, **row, **day)
        for lane, (request_id, published) in enumerate(lanes):
            ns = None if published is None else self.ns(run_id, published)
            self._add(
                plan_lanes, run_id=run_id, fence=fence, lane=lane, request_id=request_id, published_ns=ns,
                delivered=ns is not None, **day,
            )  # fmt: skip
        if outcome == "completed":
            self._count(run_id, at(completed), tokens, device_ms)

    def write_minutes(self):
        """The roll-up, as the recorder keeps it."""
        for (run_id, minute), (count, device_ms, tokens) in self.minutes.items():
            self._add(
                plan_minutes, run_id=run_id, minute=minute, plans=count, device_ms_sum=device_ms, output_tokens=tokens
            )

    def _count(self, run_id, completed, tokens, device_ms):
        key = run_id, completed.replace(second=0, microsecond=0)
        count, busy, out = self.minutes.get(key, (0, 0.0, 0))
        self.minutes[key] = count + 1, busy + device_ms, out + tokens

    def _add(self, table, **given):
        day = given.pop("recorded_on", None)
        row = filled(table, **given)
        if day is None:
            self.connection.execute(table.insert().values(**row))
            return
        columns = [*(table.c[name] for name in row), sa.column("recorded_on", sa.Date)]
        with_day = sa.table(table.name, *(sa.column(c.name, c.type) for c in columns))
        self.connection.execute(with_day.insert().values(**row, recorded_on=day))
