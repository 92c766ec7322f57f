"""The slow twin of `plan_minutes`: the same sums from every plan that the store holds."""

from __future__ import annotations

import datetime as dt
import itertools
import math

import pytest
import sqlalchemy as sa

from service.store.buckets import DEVICE_BOUNDS_MS, DEVICE_BUCKETS
from service.store.engines import write_transaction
from service.store.tables import SHAPE_COLUMNS, plan_minutes, plans

KEY = ("minute", "run_id", *SHAPE_COLUMNS, "reason")


def completed_plans(engine: sa.Engine) -> list[dict]:
    with engine.connect() as connection:
        return [
            dict(row) for row in connection.execute(sa.select(plans).where(plans.c.outcome == "completed")).mappings()
        ]


def minute_start(at: dt.datetime) -> dt.datetime:
    return at - dt.timedelta(seconds=at.second, microseconds=at.microsecond)


def plain_minutes(engine: sa.Engine) -> dict[tuple, dict]:
    groups: dict[tuple, list[dict]] = {}
    for plan in completed_plans(engine):
        key = (minute_start(plan["completed_at"]), *(plan[name] for name in KEY[1:]))
        groups.setdefault(key, []).append(plan)
    return {key: _sums(members) for key, members in groups.items()}


def _sums(members: list[dict]) -> dict:
    device = [plan["device_ms"] for plan in members]
    edges = itertools.pairwise((-math.inf, *DEVICE_BOUNDS_MS, math.inf))
    buckets = [sum(lower < ms <= upper for ms in device) for lower, upper in edges]
    return {
        "plans": len(members),
        "device_ms_sum": math.fsum(device),
        "device_ms_max": max(device),
        "selected_cost_ms_sum": math.fsum(plan["selected_cost_ms"] for plan in members),
        "output_tokens": sum(plan["output_tokens"] for plan in members),
        **dict(zip(DEVICE_BUCKETS, buckets, strict=True)),
    }


def write_minutes(engine: sa.Engine) -> None:
    """Fill an empty plan_minutes from the plans that are there."""
    rows = [{**dict(zip(KEY, key, strict=True)), **sums} for key, sums in plain_minutes(engine).items()]
    with write_transaction(engine) as connection:
        connection.execute(plan_minutes.insert(), rows)


def stored_minutes(engine: sa.Engine) -> dict[tuple, dict]:
    with engine.connect() as connection:
        rows = [dict(row) for row in connection.execute(sa.select(plan_minutes)).mappings()]
    return {tuple(row.pop(name) for name in KEY): row for row in rows}


def assert_minutes_equal_plans(engine: sa.Engine) -> None:
    """Exactly, but for the order in which floats were added."""
    stored, plain = stored_minutes(engine), plain_minutes(engine)
    assert stored.keys() == plain.keys()
    for key, sums in plain.items():
        floats = {
            name: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value for name, value in sums.items()
        }
        assert stored[key] == {**floats, "device_ms_max": sums["device_ms_max"]}
