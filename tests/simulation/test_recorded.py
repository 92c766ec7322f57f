"""Recorded durations, host times and acceptance taken again; schedulers that start warm; runs that are stopped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.catalog import Catalog
from scheduler.errors import InvalidCheckpoint
from scheduler.policy import PolicyConfig
from scheduler.records import RequestSpec
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import GraphKind, GraphShape
from scheduler.simulation.durations import HostCosts, Moment
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.machine import MachineSettings, simulate
from scheduler.simulation.recorded import (
    DEFAULT_HOST_NS,
    NEARBY,
    HostSamples,
    RecordedDurations,
    RecordedHost,
    ShapeSamples,
    Waits,
    estimate_by_neighbours,
    slope,
    survival_of,
)
from scheduler.simulation.warm import known_durations, warm_scheduler
from scheduler.simulation.workload import Arrival, Workload

PREFILL = GraphShape(GraphKind.PREFILL, 1, prefill_capacity=64)
DECODE = GraphShape(GraphKind.DECODE, 4)
SNAPSHOTS = tuple(GraphShape(kind, 1) for kind in (GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT))
MS = 1_000_000


class Step:
    def __init__(self, shape: GraphShape) -> None:
        self.shape = shape


def samples(durations_ms: list[float], contexts: list[float] | None = None) -> ShapeSamples:
    times = [number * 1000 * MS for number in range(len(durations_ms))]
    return ShapeSamples(times, [round(ms * MS) for ms in durations_ms], contexts or [0.0] * len(durations_ms))


def test_a_duration_is_one_of_those_recorded_about_the_same_time() -> None:
    durations = RecordedDurations({DECODE: samples([1.0] * 100 + [9.0] * 100)}, {}, seed=1)
    early = {durations.duration_ns(Step(DECODE), 0.0, (100 - NEARBY - 2) * 1000 * MS) for _ in range(50)}
    late = {durations.duration_ns(Step(DECODE), 0.0, 190_000 * MS) for _ in range(50)}
    assert early == {(1 * MS, 1 * MS)}
    assert late == {(9 * MS, 9 * MS)}


def test_a_duration_grows_with_the_context_as_recorded_ones_did() -> None:
    contexts = [float(10 * (number % 50)) for number in range(200)]
    durations = RecordedDurations({DECODE: samples([5 + context / 200 for context in contexts], contexts)}, {})
    assert durations.needs_context
    taken = [durations.duration_ns(Step(DECODE), 400.0, 100_000 * MS)[0] / MS for _ in range(50)]
    assert np.median(taken) == pytest.approx(7.0, abs=0.1)


def test_one_outlier_makes_no_slope_and_few_samples_say_nothing() -> None:
    generator = np.random.default_rng(0)
    contexts = np.arange(100, dtype=float)
    flat = np.full(100, 5.0)
    flat[-1] = 5000.0
    assert slope(contexts, flat, generator) == 0.0
    assert slope(contexts[:10], contexts[:10], generator) == 0.0
    assert slope(np.zeros(100), np.arange(100, dtype=float), generator) == 0.0


def test_shapes_that_never_ran_take_their_estimate_and_are_counted() -> None:
    durations = RecordedDurations({DECODE: samples([2.0])}, {PREFILL: 7 * MS})
    assert durations.duration_ns(Step(PREFILL), 0.0, 0) == (7 * MS, 7 * MS)
    assert durations.duration_ns(Step(DECODE), 0.0, 0) == (2 * MS, 2 * MS)
    assert durations.estimated_steps == 1
    with pytest.raises(SimulationError, match="nothing says how long decode:B1"):
        durations.duration_ns(Step(GraphShape(GraphKind.DECODE, 1)), 0.0, 0)


@pytest.mark.parametrize("columns", [([0], [1], []), ([], [], []), ([0], [0], [0.0])])
def test_samples_that_do_not_fit_together_are_refused(columns) -> None:
    with pytest.raises(SimulationError):
        ShapeSamples(*columns)


def test_host_times_are_those_of_the_kind_and_moment() -> None:
    host = RecordedHost(
        HostSamples(
            {GraphKind.DECODE: Waits([0], [3]), GraphKind.PREFILL: Waits([0], [4])},
            {GraphKind.DECODE: Waits([0], [5])},
            Waits([0], [6]),
            Waits([0], [7]),
        )
    )
    assert host.prepare_ns(DECODE, Moment.COMPLETION, 0) == 3
    assert host.prepare_ns(PREFILL, Moment.COMPLETION, 0) == 4
    assert host.prepare_ns(SNAPSHOTS[0], Moment.COMPLETION, 0) in (3, 4)
    assert host.prepare_ns(DECODE, Moment.IDLE, 0) == 6
    assert host.prepare_ns(DECODE, Moment.BESIDE, 0) == host.publish_ns(DECODE, 0) == 7
    assert host.pause_ns(PREFILL, 0) == 5
    nothing = RecordedHost(HostSamples({}, {}, Waits(), Waits()))
    assert nothing.prepare_ns(DECODE, Moment.IDLE, 0) == DEFAULT_HOST_NS
    with pytest.raises(SimulationError):
        Waits([0], [-1])


rounds = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40).map(
    lambda pairs: [(max(pair), min(pair)) for pair in pairs]
)


@given(rounds)
def test_the_survival_curve_is_that_of_counting_round_by_round(pairs) -> None:
    found = survival_of([offered for offered, _ in pairs], [accepted for _, accepted in pairs], "test")
    expected, joint = [], 1.0
    for depth in range(1, max((offered for offered, _ in pairs), default=0) + 1):
        tried = [accepted >= depth for offered, accepted in pairs if offered >= depth and accepted >= depth - 1]
        joint *= sum(tried) / len(tried) if tried else 0.0
        expected.append(joint)
    assert ([] if found is None else list(found.probabilities)) == pytest.approx(expected)
    assert expected == sorted(expected, reverse=True)


@given(st.dictionaries(st.sampled_from([1, 2, 4, 8, 16, 64]), st.integers(1, 10**9), min_size=1), st.integers(1, 128))
def test_an_estimate_lies_between_its_neighbours(known, batch) -> None:
    durations = {GraphShape(GraphKind.DECODE, size): duration for size, duration in known.items()}
    (estimate,) = estimate_by_neighbours(durations, [GraphShape(GraphKind.DECODE, batch)]).values()
    smaller = [size for size in known if size <= batch]
    larger = [size for size in known if size >= batch]
    if smaller and larger:
        ends = known[max(smaller)], known[min(larger)]
        assert min(ends) <= estimate <= max(ends)
    elif larger:
        assert estimate == known[min(larger)]
    else:
        assert estimate >= known[max(smaller)]
    assert estimate_by_neighbours(durations, [PREFILL]) == {}


def _busy_scheduler() -> RequestScheduler:
    scheduler = RequestScheduler(Catalog((PREFILL, DECODE)), PolicyConfig.balanced(), 4)
    scheduler.advance_to(5 * MS)
    scheduler.catalog.observe(DECODE, 3 * MS, 5 * MS)
    for name in ("one", "two"):
        scheduler.admit(RequestSpec(name, 10, 10, 100))
    plan = scheduler.plan()
    assert plan is not None
    scheduler.commit(plan, 7)
    return scheduler


def test_a_warm_scheduler_knows_what_the_recorded_one_did_and_has_nobody() -> None:
    checkpoint = _busy_scheduler().checkpoint()
    start = warm_scheduler(checkpoint, PolicyConfig.throughput())
    assert (start.scheduler.resident_count, start.scheduler.in_flight_frames) == (0, 0)
    assert start.scheduler.policy == PolicyConfig.throughput()
    assert (start.last_fence, start.now_ns) == (7, 5 * MS)
    assert known_durations(checkpoint) == {DECODE: 3 * MS}
    with pytest.raises(InvalidCheckpoint):
        warm_scheduler(checkpoint[:-1], PolicyConfig.balanced())


class Fixed:
    """A DurationSource of 2 ms."""

    needs_context = False

    def duration_ns(self, _plan, _context, _now_ns):
        return 2 * MS, 2 * MS


def _stopped(stop_ns: int | None, shapes: tuple[GraphShape, ...] = (PREFILL, DECODE), rows: int = 0):
    scheduler = RequestScheduler(Catalog(shapes), PolicyConfig.balanced(), 2)
    spec = RequestSpec("0", 20, 40, 1000)
    arrivals = [Arrival(number, 0, 20, 30, spec=None if number else spec) for number in range(4)]
    settings = MachineSettings(2, 1000, host=HostCosts(step_ms=0.1), snapshot_rows=rows, stop_ns=stop_ns)
    return simulate(scheduler, Workload(tuple(arrivals), {}), Fixed(), settings), scheduler


def test_a_stopped_run_says_who_had_not_ended() -> None:
    whole, _ = _stopped(None)
    assert (len(whole.outcomes), whole.open, whole.waiting) == (4, [], 0)
    assert whole.computed_prompt_tokens == 80
    stopped, _ = _stopped(30 * MS)
    assert (len(stopped.outcomes), len(stopped.open), stopped.waiting) == (0, 2, 2)
    assert all(0 < outcome.output_tokens < 30 and outcome.first_ns for outcome in stopped.open)
    assert stopped.plans < whole.plans


def test_answers_leave_their_states_where_there_are_graphs_and_rows_for_them() -> None:
    result, scheduler = _stopped(None, (PREFILL, DECODE, *SNAPSHOTS), rows=8)
    assert len(result.outcomes) == 4
    assert result.kinds["terminal_snapshot"].launches >= 1
    assert result.kinds["snapshot"].launches >= 4
    assert scheduler.resident_count == 0
