"""The roll-up by minute counts every completed plan once, and its percentiles lie in the true one's bucket."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import pathlib
import random
import tempfile

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_minutes import assert_minutes_equal_plans, completed_plans, minute_start, stored_minutes

from service.store.buckets import DEVICE_BOUNDS_MS, DEVICE_BUCKETS, device_bucket
from service.store.database import write_transaction
from service.store.errors import InvalidFilter
from service.store.rollups import bucket_percentile, device_percentiles
from service.store.tables import SHAPE_COLUMNS, metadata
from tests.recorder.crashing import Crash, crash_at

SECOND = 1000.0
EDGES = [edge for bound in DEVICE_BOUNDS_MS for edge in (bound, math.nextafter(bound, math.inf))]
ANY_FIXTURE = list(HealthCheck)


def work(make, seed: int, fences: int = 24, run_id: str = "run-1", bad: bool = False) -> list[list]:
    """Frames of two plans in flight over some minutes, of several shapes, reasons, outcomes and durations."""
    random_ = random.Random(seed)
    frames, waiting, now = [[make.started(run_id), make.arrived("a")]], [], 10.0
    for fence in range(1, fences + 1):
        now += random_.choice([0.5, 5 * SECOND, 20 * SECOND])
        shape = random_.choice([make.SHAPE, make.PREFILL])
        reason = random_.choice(["ordinary", "discovery"])
        frames.append([msgspec.structs.replace(make.plan(fence, ["a"], now), shape=shape, reason=reason)])
        waiting.append(fence)
        if len(waiting) == 2 or random_.random() < 0.4:
            done = make.completed(
                waiting.pop(0), 1, now + 20, random_.choice(["completed"] * 5 + ["failed", "abandoned"])
            )
            device_ns = random_.choice([0, 100_000, 100_001, random_.randrange(10**6), random_.randrange(2 * 10**10)])
            frames.append([msgspec.structs.replace(done, device_ns=device_ns)])
            if bad and fence % 5 == 0:
                frames[-1].append(make.arrived(f"bad-{fence}", max_tokens=2**63))
    return frames


def empty(engine) -> None:
    with write_transaction(engine) as connection:
        for table in metadata.tables.values():
            connection.execute(table.delete())


@settings(max_examples=20, deadline=None, suppress_health_check=ANY_FIXTURE)
@given(
    seed=st.integers(0, 2**32),
    drains=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), max_size=6),
    last=st.integers(1, 60),
    bad=st.booleans(),
)
def test_minutes_equal_the_plans_however_batches_are_cut_and_replayed(make, any_store, seed, drains, last, bad):
    empty(any_store)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        make.write_frames(directory, work(make, seed, bad=bad))
        make.write_frames(directory, work(make, seed + 1, 8, "run-2"), "run-2")
        for batch, stop in drains:
            with contextlib.suppress(Crash):
                make.drain(any_store, directory, batch, step=crash_at(stop))
            assert_minutes_equal_plans(any_store)
        make.drain(any_store, directory, last)
    assert_minutes_equal_plans(any_store)
    assert sum(row["plans"] for row in stored_minutes(any_store).values()) == len(completed_plans(any_store)) > 0


@pytest.mark.parametrize("batch", [1, 100])
def test_a_transaction_that_was_not_committed_counts_nothing(any_store, tmp_path, make, batch):
    make.write_frames(tmp_path, [[make.started(), make.plan(1, ["a"])], [make.completed(1, 1)]])

    def stop(name: str) -> None:
        if name == "commit" and next(commits) == (batch == 1):
            raise Crash

    commits = iter(range(9))
    with pytest.raises(Crash):
        make.drain(any_store, tmp_path, batch, step=stop)
    assert stored_minutes(any_store) == {}
    make.drain(any_store, tmp_path, batch)
    ((key, row),) = stored_minutes(any_store).items()
    assert key[0] == dt.datetime(2025, 10, 9, 8, 53, tzinfo=dt.UTC)
    assert (row["plans"], row["device_ms_sum"], row["selected_cost_ms_sum"], row["output_tokens"]) == (1, 18.0, 20.0, 1)
    assert row["device_to_20000us"] == 1


def test_a_plan_whose_end_arrives_again_is_counted_once(any_store, tmp_path, make):
    frames = [[make.started(), make.plan(1, ["a"])], [make.completed(1, 1)], [make.completed(1, 1)]]
    make.write_frames(tmp_path, frames)
    make.drain(any_store, tmp_path, 1)
    assert_minutes_equal_plans(any_store)


def test_an_end_without_a_commit_counts_nothing(any_store, tmp_path, make):
    make.write_frames(tmp_path, [[make.started(), make.completed(7, 1)]])
    make.drain(any_store, tmp_path)
    assert stored_minutes(any_store) == {}


@pytest.mark.parametrize("percentile", [1, 50, 99, 100])
def test_a_percentile_lies_in_the_bucket_of_the_true_one(any_store, tmp_path, make, percentile):
    make.write_frames(tmp_path, work(make, 5, 300))
    make.drain(any_store, tmp_path, 50)
    minutes = sorted({key[0] for key in stored_minutes(any_store)})
    for since, until in ((None, None), (minutes[3], minutes[-3])):
        true: dict[tuple, list[float]] = {}
        for plan in completed_plans(any_store):
            minute = minute_start(plan["completed_at"])
            if since is None or since <= minute < until:
                true.setdefault(tuple(plan[name] for name in SHAPE_COLUMNS), []).append(plan["device_ms"])
        found = device_percentiles(any_store, since=since, until=until, run="run-1", percentile=percentile)
        assert {tuple(row[name] for name in SHAPE_COLUMNS) for row in found} == true.keys()
        for row in found:
            device = sorted(true[tuple(row[name] for name in SHAPE_COLUMNS)])
            exact = device[-(-len(device) * percentile // 100) - 1]
            assert device_bucket(row["device_ms_percentile"]) == device_bucket(exact)
            assert (row["plans"], row["device_ms_max"]) == (len(device), device[-1])
            assert row["device_ms_mean"] == pytest.approx(sum(device) / len(device))
    assert device_percentiles(any_store, run="another") == []


@given(
    values=st.lists(st.floats(0, 3e4) | st.sampled_from(EDGES), min_size=1, max_size=50),
    percentile=st.integers(1, 100),
)
def test_interpolation_stays_in_the_bucket_and_below_the_largest(values, percentile):
    counts = [0] * len(DEVICE_BUCKETS)
    for value in values:
        counts[device_bucket(value)] += 1
    exact = sorted(values)[-(-len(values) * percentile // 100) - 1]
    found = bucket_percentile(counts, max(values), percentile)
    assert device_bucket(found) == device_bucket(exact)
    assert found <= max(values)


@pytest.mark.parametrize("percentile", [0, 101])
def test_a_percentile_that_is_none_is_refused(store, percentile):
    with pytest.raises(InvalidFilter, match="percentile"):
        device_percentiles(store, percentile=percentile)
