"""Reads of the roll-up `plan_minutes`: what a long range costs does not depend on how many plans it holds."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate

import sqlalchemy as sa

from service.store import filters
from service.store.buckets import DEVICE_BOUNDS_MS, DEVICE_BUCKETS
from service.store.engines import read_transaction
from service.store.errors import InvalidFilter
from service.store.queries import Bind, Row, Time
from service.store.tables import SHAPE_COLUMNS, plan_minutes


def device_percentiles(
    bind: Bind, *, since: Time = None, until: Time = None, run: str | None = None, percentile: int = 99
) -> list[Row]:
    """Device time by shape over the minutes that begin from `since` (included) to `until` (excluded).

    Each row holds the shape columns, `plans`, `device_ms_mean`, `device_ms_max` and `device_ms_percentile`: the value
    of the nearest rank, interpolated linearly within its bucket, so it lies in the bucket of the true one. Ordered by
    shape. Raises InvalidFilter and StoreError.
    """
    if not 1 <= percentile <= 100:
        raise InvalidFilter("percentile", "must be a whole number from 1 to 100")
    first, last = filters.time_range(since, until)
    run_id = filters.identifier("run", run)
    minutes = plan_minutes.c
    shape = [minutes[name] for name in SHAPE_COLUMNS]
    query = sa.select(
        *shape,
        sa.func.sum(minutes.device_ms_sum),
        sa.func.max(minutes.device_ms_max),
        *(sa.func.sum(minutes[name]) for name in DEVICE_BUCKETS),
    )
    if first is not None:
        query = query.where(minutes.minute >= first)
    if last is not None:
        query = query.where(minutes.minute < last)
    if run_id is not None:
        query = query.where(minutes.run_id == run_id)
    with read_transaction(bind) as connection:
        found = connection.execute(query.group_by(*shape).order_by(*shape)).all()
    width = len(SHAPE_COLUMNS)
    rows = []
    for row in found:
        total, longest, counts = row[width], row[width + 1], [int(count) for count in row[width + 2 :]]
        plans = sum(counts)
        rows.append(
            {
                **dict(zip(SHAPE_COLUMNS, row, strict=False)),
                "plans": plans,
                "device_ms_mean": total / plans,
                "device_ms_max": longest,
                "device_ms_percentile": bucket_percentile(counts, longest, percentile),
            }
        )
    return rows


def bucket_percentile(counts: list[int], longest: float, percentile: int) -> float:
    """The percentile (1 to 100, nearest rank) of the values in the buckets; `longest` is the largest of them."""
    rank = -(-sum(counts) * percentile // 100)
    running = list(accumulate(counts))
    index = bisect_left(running, rank)
    before = running[index] - counts[index]
    lower = DEVICE_BOUNDS_MS[index - 1] if index else 0.0
    upper = min(longest, DEVICE_BOUNDS_MS[index]) if index < len(DEVICE_BOUNDS_MS) else longest
    value = lower + (upper - lower) * ((rank - before) / counts[index])
    return min(upper, max(value, math.nextafter(lower, math.inf)))  # rounding must not leave the bucket
