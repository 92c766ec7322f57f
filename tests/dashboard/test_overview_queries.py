"""The overview's reads, against the same figures from whole rows in plain Python; on both databases."""

from __future__ import annotations

import collections
import datetime as dt
import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from dashboard.queries import trends as trends_module
from dashboard.queries.latencies import Percentiles, largest, percentiles, percentiles_by
from dashboard.queries.overview import read_now
from dashboard.queries.trends import MOST_BUCKETS, Trends, bucket_width, read_trends
from dashboard.span import Span, last_span
from service.load.million import Made, fill_store
from service.store.engines import open_database, read_transaction
from service.store.tables import plan_lanes, plans, policy_applications, requests, trace_gaps

NOW = dt.datetime(2026, 3, 1, 0, 20, 30, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
Row = dict[str, Any]


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[sa.Engine, Made]]:
    """About an hour: 20 episodes in two runs, over midnight."""
    if request.param == "sqlite":
        url = str(tmp_path_factory.mktemp("overview") / "helios.db")
    else:
        url = request.getfixturevalue("module_postgresql_url")
    made = fill_store(url, NOW, 2500)
    engine = open_database(url)
    yield engine, made
    engine.dispose()


def rows(engine: sa.Engine, table: sa.Table) -> list[Row]:
    with read_transaction(engine) as connection:
        return [dict(row) for row in connection.execute(sa.select(table)).mappings()]


def plain(values: list[float]) -> Percentiles:
    """Nearest rank: the smallest value that at least so many percent do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return Percentiles()
    half, most = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99))
    return Percentiles(len(ordered), half, most)


def start_ms(row: Row) -> float | None:
    first = row["first_output_at"]
    return None if first is None else (first - row["arrived_at"]) / dt.timedelta(milliseconds=1)


def between_ms(row: Row) -> float | None:
    if row["decode_ms"] is None or row["output_tokens"] < 2:
        return None
    return float(row["decode_ms"] / (row["output_tokens"] - 1))


def known(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def close(found: Percentiles, wanted: Percentiles) -> bool:
    pairs = ((found.p50, wanted.p50), (found.p99, wanted.p99))
    return found.count == wanted.count and all(a == b or a == pytest.approx(b, rel=1e-9) for a, b in pairs)


@given(st.lists(st.one_of(st.just(math.nan), st.floats(0, 1e6)), max_size=300))
def test_percentiles_are_nearest_ranks_of_the_numbers(values: list[float]) -> None:
    numbers = [value for value in values if not math.isnan(value)]
    assert percentiles(np.array(values, dtype=np.float64)) == plain(numbers)
    assert [values[at] for at in largest(np.array(values, dtype=np.float64), 5)] == sorted(numbers, reverse=True)[:5]


@given(st.lists(st.tuples(st.integers(-3, 3), st.one_of(st.just(math.nan), st.floats(0, 1e3))), max_size=80))
def test_percentiles_of_groups_are_those_of_each_group_alone(pairs: list[tuple[int, float]]) -> None:
    groups = np.array([group for group, _ in pairs], dtype=np.int64)
    values = np.array([value for _, value in pairs], dtype=np.float64)
    by_group: dict[int, list[float]] = collections.defaultdict(list)
    for group, value in pairs:
        if not math.isnan(value):
            by_group[group].append(value)
    assert percentiles_by(groups, values) == {group: plain(own) for group, own in by_group.items()}


@given(st.floats(1, 40 * 365 * 86_400))
def test_a_span_is_cut_into_a_bounded_number_of_pieces(seconds: float) -> None:
    span = Span(NOW - dt.timedelta(seconds=seconds), NOW)
    assert span.seconds / bucket_width(span).total_seconds() <= MOST_BUCKETS


def spans(made: Made) -> list[Span]:
    random_ = random.Random(7)
    length = (made.last_at - made.first_at).total_seconds()
    found = [last_span("1h", NOW), last_span("24h", NOW), Span(NOW, NOW + MINUTE)]
    for _ in range(8):
        begin = made.first_at + dt.timedelta(seconds=random_.uniform(-60, length))
        found.append(Span(begin, begin + dt.timedelta(seconds=random_.uniform(5, length))))
    return found


def test_trends_are_the_sums_and_ranks_of_all_rows(filled: tuple[sa.Engine, Made]) -> None:
    engine, made = filled
    stored, asked = rows(engine, plans), rows(engine, requests)
    applied, gaps = rows(engine, policy_applications), rows(engine, trace_gaps)
    for span in spans(made):
        found = read_trends(engine, span)
        within = [row for row in asked if span.since <= row["arrived_at"] < span.until]
        assert close(found.first_token, plain(known([start_ms(row) for row in within])))
        assert close(found.between, plain(known([between_ms(row) for row in within])))
        assert found.finishes == collections.Counter(row["finish_reason"] for row in within)
        slow = sorted(known([start_ms(row) for row in within]), reverse=True)[:5]
        assert [row["start_ms"] for row in found.slowest] == pytest.approx(slow)
        assert len(found.changes) == sum(span.since <= row["applied_at"] < span.until for row in applied)
        assert found.gaps == sum(span.since <= row["noticed_at"] < span.until for row in gaps)
        _check_minutes(found, stored)
        _check_buckets(found, within)


def _check_minutes(found: Trends, stored: list[Row]) -> None:
    """The roll-up's minutes are whole ones: the first is that in which the span begins."""
    begin = found.span.since.replace(second=0, microsecond=0)
    ended = [
        row
        for row in stored
        if row["outcome"] == "completed"
        and begin <= row["completed_at"].replace(second=0, microsecond=0) < found.span.until
    ]
    for shares, key in ((found.kinds, "kind"), (found.reasons, "reason")):
        assert {share.name for share in shares} == {row[key] for row in ended}
        for share in shares:
            own = [row for row in ended if row[key] == share.name]
            assert share.plans == len(own)
            assert share.tokens == sum(row["output_tokens"] for row in own)
            assert share.busy_ms == pytest.approx(sum(row["device_ms"] for row in own))
            assert share.longest_ms == max(row["device_ms"] for row in own)
    assert sum(bucket.plans for bucket in found.buckets) == len(ended)
    assert sum(bucket.tokens for bucket in found.buckets) == sum(row["output_tokens"] for row in ended)


def _check_buckets(found: Trends, within: list[Row]) -> None:
    assert len(found.buckets) <= MOST_BUCKETS + 1
    for before, bucket in itertools.pairwise(found.buckets):
        assert bucket.start == before.start + found.width
    for bucket in found.buckets:
        own = [row for row in within if bucket.start <= row["arrived_at"] < bucket.start + found.width]
        assert close(bucket.first_token, plain(known([start_ms(row) for row in own])))
        assert close(bucket.between, plain(known([between_ms(row) for row in own])))
        assert 0 < bucket.seconds <= found.width.total_seconds()


def test_only_the_newest_requests_count_where_there_are_too_many(
    filled: tuple[sa.Engine, Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = filled
    assert not read_trends(engine, last_span("24h", NOW)).capped
    monkeypatch.setattr(trends_module, "MAX_REQUESTS", 10)
    found = read_trends(engine, last_span("24h", NOW))
    assert found.capped
    assert sum(found.finishes.values()) == 10


def test_this_moment_is_that_of_all_rows(filled: tuple[sa.Engine, Made]) -> None:
    engine, made = filled
    found = read_now(engine, NOW)
    asked, lanes = rows(engine, requests), rows(engine, plan_lanes)
    run = made.run_ids[1]
    served = {(row["run_id"], row["request_id"]) for row in lanes}
    open_ = [row for row in asked if row["run_id"] == run and row["finished_at"] is None]
    waiting = [row for row in open_ if (run, row["request_id"]) not in served]
    assert (found.waiting.count, found.running) == (len(waiting), len(open_) - len(waiting))
    assert found.waiting.oldest_at == min(row["arrived_at"] for row in waiting)
    minute = [row for row in rows(engine, plans) if NOW - MINUTE <= row["committed_at"] < NOW]
    assert (found.plans, found.tokens) == (len(minute), sum(row["output_tokens"] for row in minute))
    assert sum(found.busy_ms.values()) == pytest.approx(sum(row["device_ms"] or 0 for row in minute))
    started = [row for row in asked if row["first_output_at"] is not None and row["first_output_at"] >= NOW - MINUTE]
    ended = [row for row in asked if row["finished_at"] is not None and row["finished_at"] >= NOW - MINUTE]
    assert close(found.first_token, plain(known([start_ms(row) for row in started])))
    assert close(found.between, plain(known([between_ms(row) for row in ended])))
    assert found.run is not None
    assert found.run["run_id"] == run
    assert found.policy is not None
    assert found.policy["version"] == 3
    assert found.gaps == 1
    assert found.last_plan_at == max(row["committed_at"] for row in rows(engine, plans))


def test_an_empty_store_has_a_moment_and_no_trend(any_store: sa.Engine) -> None:
    now = read_now(any_store, NOW)
    assert (now.run, now.policy, now.running, now.plans, now.gaps) == (None, None, 0, 0, 0)
    found = read_trends(any_store, last_span("1h", NOW))
    assert (found.kinds, found.slowest, found.first_token) == ([], [], Percentiles())
