"""How long requests took, many at a time: read once as plain columns, ranked here.

A window function in SQL takes ten times as long for the same ranks, and a second read for each other question.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from dashboard.queries.driver_rows import driver_rows
from service.store.epoch import epoch_s
from service.store.tables import requests

Floats = npt.NDArray[np.float64]
HALF, MOST = 50, 99
_NOT_A_TIME = "NaT"
_SECOND, _MILLISECOND = dt.timedelta(seconds=1), dt.timedelta(milliseconds=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Percentiles:
    """Nearest-rank percentiles in ms of `count` values; None without any."""

    count: int = 0
    p50: float | None = None
    p99: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Latencies:
    """Requests, newest first; every column has one entry for each.

    `arrived_s`: whole seconds since 1970. `start_ms`: from arrival to the hand-over of the first output. `between_ms`:
    the mean time between its tokens, of those that ended with two at least. NaN where there is none. `capped`: there
    were more.
    """

    arrived_s: npt.NDArray[np.int64]
    start_ms: Floats
    between_ms: Floats
    finishes: collections.Counter[str | None]
    capped: bool


def read_latencies(connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]], limit: int) -> Latencies:
    """The newest `limit` requests of `where`, by arrival."""
    columns = requests.c
    others = (columns.decode_ms, columns.output_tokens, columns.finish_reason)
    query = sa.select(*_times(connection), *others).where(*where)
    rows = driver_rows(connection, query.order_by(columns.arrived_at.desc()).limit(limit + 1))
    arrivals, firsts, decode_ms, tokens, finishes = zip(*rows[:limit], strict=True) if rows else ((),) * 5
    arrived_s, start_ms = _elapsed(connection, arrivals, firsts)
    return Latencies(
        arrived_s=arrived_s,
        start_ms=start_ms,
        between_ms=_between(decode_ms, tokens),
        finishes=collections.Counter(finishes),
        capped=len(rows) > limit,
    )


def joined(one: Latencies, other: Latencies) -> Latencies:
    """Both, the first ones in front."""
    return Latencies(
        arrived_s=np.concatenate([one.arrived_s, other.arrived_s]),
        start_ms=np.concatenate([one.start_ms, other.start_ms]),
        between_ms=np.concatenate([one.between_ms, other.between_ms]),
        finishes=one.finishes + other.finishes,
        capped=one.capped or other.capped,
    )


def slowest_starts(
    connection: sa.Connection, found: Latencies, since: dt.datetime, until: dt.datetime, count: int
) -> list[dict[str, Any]]:
    """The rows of those with the longest time to the first output, with it as `start_ms`; arrived since, before until.

    They are looked for in the seconds in which such requests arrived, one after the other: each is a few rows of the
    index by arrival.
    """
    at = requests.c.arrived_at
    rows: list[dict[str, Any]] = []
    for second in {int(found.arrived_s[index]) for index in largest(found.start_ms, count)}:
        begin = dt.datetime.fromtimestamp(second, dt.UTC)
        then = (at >= max(begin, since), at < min(begin + _SECOND, until))
        query = sa.select(requests).where(*then, requests.c.first_output_at.is_not(None))
        rows += (dict(row) for row in connection.execute(query).mappings())
    for row in rows:
        row["start_ms"] = (row["first_output_at"] - row["arrived_at"]) / _MILLISECOND
    return sorted(rows, key=lambda row: (-row["start_ms"], row["run_id"], row["request_id"]))[:count]


def percentiles(values: Floats) -> Percentiles:
    """Of the values that are numbers."""
    known = np.sort(values[~np.isnan(values)])
    if not known.size:
        return Percentiles()
    half, most = (float(known[-(-known.size * share // 100) - 1]) for share in (HALF, MOST))
    return Percentiles(int(known.size), half, most)


def percentiles_by(groups: npt.NDArray[np.int64], values: Floats) -> dict[int, Percentiles]:
    """Percentiles for each group that has a number; `groups` and `values` are of one length."""
    order = np.argsort(groups, kind="stable")
    sorted_groups, sorted_values = groups[order], values[order]
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=sorted_groups[:1] - 1))
    pieces = np.split(sorted_values, starts[1:]) if starts.size else []
    found = {int(sorted_groups[start]): percentiles(piece) for start, piece in zip(starts, pieces, strict=True)}
    return {group: value for group, value in found.items() if value.count}


def largest(values: Floats, count: int) -> list[int]:
    """Where the `count` largest numbers are, the largest first."""
    order = np.argsort(np.where(np.isnan(values), -np.inf, values), kind="stable")[::-1]
    return [int(at) for at in order[:count] if not np.isnan(values[at])]


def _times(connection: sa.Connection) -> list[sa.ColumnElement[Any]]:
    """Arrival and first output: as seconds on PostgreSQL, as text on SQLite, which is slow at making objects of it."""
    arrived, first = requests.c.arrived_at, requests.c.first_output_at
    if connection.dialect.name == "postgresql":
        return [epoch_s(connection, arrived), sa.cast(sa.extract("epoch", first - arrived) * 1000, sa.Float)]
    return [sa.type_coerce(arrived, sa.Text), sa.type_coerce(first, sa.Text)]


def _elapsed(
    connection: sa.Connection, arrivals: Sequence[Any], firsts: Sequence[Any]
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Whole seconds of the arrivals, and ms to the first outputs, of what `_times` gave."""
    if connection.dialect.name == "postgresql":
        return np.array(arrivals, dtype=np.int64), np.array(firsts, dtype=np.float64)  # None becomes NaN
    arrived = np.array(arrivals, dtype="datetime64[us]")
    first = np.array([at or _NOT_A_TIME for at in firsts], dtype="datetime64[us]")
    start = (first - arrived).astype(np.float64) / 1e3
    start[np.isnat(first)] = np.nan
    return arrived.astype("datetime64[s]").astype(np.int64), start


def _between(decode_ms: Sequence[float | None], output_tokens: Sequence[int]) -> Floats:
    decoded, tokens = np.array(decode_ms, dtype=np.float64), np.array(output_tokens, dtype=np.float64)
    return np.where(tokens < 2, np.nan, decoded / np.maximum(tokens - 1, 1))
