"""The simulated machine: when steps run, when output is seen, and who is admitted."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler.shapes import Allocation, GraphKind, GraphShape
from scheduler.simulation.acceptance import AcceptanceLuck, Survival
from scheduler.simulation.durations import HostCosts
from scheduler.simulation.errors import SimulationError, StuckSimulation
from scheduler.simulation.machine import MachineSettings, simulate
from scheduler.simulation.workload import Arrival, Workload, parse_arrivals
from tests.simulation.workloads import of_counts

HOST = HostCosts(step_ms=0.25)


def settings(**changes) -> MachineSettings:
    return MachineSettings(**{"queue_depth": 1, "host": HOST, "request_slots": 4, **changes})


def ms(*values_ns: int) -> list[float]:
    return [value / 1e6 for value in values_ns]


def test_a_step_waits_for_the_host_and_its_output_is_seen_when_the_next_one_is_submitted(
    prompts_then_decoders, given_ms
):
    batcher = prompts_then_decoders()
    result = simulate(batcher, of_counts([(1, 30, 3)]), given_ms(prefill=10, decode=5), settings())
    # prefill runs 0.25 to 10.25 and is seen at 10.5, as the first decode step starts; that ends at 15.5 ...
    assert ms(*(at - 10**9 for _, _, at in batcher.published)) == [10.5, 15.75, 21.0]
    outcome = result.outcomes[0]
    assert ms(outcome.first_ns - outcome.arrived_ns, outcome.largest_gap_ns) == [10.5, 5.25]
    assert ms(*result.gaps_ns) == [5.25, 5.25]
    assert (result.plans, ms(result.busy_ns)) == (3, [20.0])
    assert result.end_ns == outcome.finished_ns == 1_021_000_000


def test_with_two_frame_slots_the_host_prepares_a_step_while_another_runs(prompts_then_decoders, given_ms):
    batcher = prompts_then_decoders(queues=True)
    simulate(batcher, of_counts([(0, 30, 4)]), given_ms(prefill=10, decode=5), settings(queue_depth=2))
    # decode steps run back to back from 10.5 on; each is seen one host cost after its end.
    assert ms(*(at for _, _, at in batcher.published)) == [10.5, 15.75, 20.75, 25.75]
    assert [timing.wall_ns for timing in batcher.timings[:4]] == [10_000_000, 5_000_000, 9_750_000, 9_750_000]
    assert {timing.device_ns for timing in batcher.timings[1:]} == {(5_000_000,)}


def test_one_frame_slot_stays_empty_when_the_queue_depth_is_one(prompts_then_decoders, given_ms):
    batcher = prompts_then_decoders(queues=True)
    simulate(batcher, of_counts([(0, 30, 4)]), given_ms(prefill=10, decode=5), settings(queue_depth=1))
    assert ms(*(at for _, _, at in batcher.published)) == [10.5, 15.75, 21.0, 26.25]


def test_a_lane_queued_for_an_answer_that_has_ended_emits_a_token_that_nobody_takes(prompts_then_decoders, given_ms):
    batcher = prompts_then_decoders(queues=True)
    result = simulate(batcher, of_counts([(0, 30, 2)]), given_ms(prefill=10, decode=5), settings(queue_depth=2))
    assert [len(records) for records in batcher.records] == [1, 1, 1]
    assert [(o.output_tokens, ms(o.finished_ns)) for o in result.outcomes] == [(2, [15.75])]
    assert len(batcher.published) == 2
    assert batcher.records[2][0].emitted_tokens == (0,)


def test_a_host_slower_than_the_device_sees_completions_late(prompts_then_decoders, given_ms):
    batcher = prompts_then_decoders(queues=True)
    slow = settings(queue_depth=2, host=HostCosts(step_ms=8.0))
    simulate(batcher, of_counts([(0, 30, 4)]), given_ms(prefill=10, decode=5), slow)
    assert ms(*(at for _, _, at in batcher.published)) == [26.0, 42.0, 50.0, 58.0]


def test_whoever_finds_no_slot_waits_and_is_taken_in_order_of_arrival(prompts_then_decoders, given_ms):
    batcher = prompts_then_decoders(slots=1)
    arrivals = of_counts([(0, 10, 2), (0.001, 11, 1), (0.002, 12, 1)])
    result = simulate(batcher, arrivals, given_ms(prefill=10, decode=5), settings())
    assert [spec.request_id for spec in batcher.specs] == ["0", "1", "2"]
    assert [ms(o.admitted_ns) for o in result.outcomes] == [[0.0], [15.5], [25.75]]


def test_a_later_turn_arrives_its_think_time_after_the_turn_before_was_seen_to_end(prompts_then_decoders, given_ms):
    text = (
        "time_s,prompt_tokens,output_tokens,session_id,turn,shared_prefix_tokens,think_s\n"
        "0,30,1,9,0,0,0\n5,50,1,9,1,31,2\n9,60,1,9,2,64,0.5\n"
    )
    batcher = prompts_then_decoders()
    result = simulate(batcher, parse_arrivals(text, "a.csv"), given_ms(prefill=10, decode=5), settings())
    assert [ms(o.arrived_ns) for o in result.outcomes] == [[0.0], [2010.5], [2521.0]]
    assert [o.cached_tokens for o in result.outcomes] == [0, 31, 51]


def test_a_prompt_that_fills_the_context_is_refused_and_its_session_goes_on(prompts_then_decoders, given_ms):
    first = Arrival(0, 0, 100, 5, session="1")
    second = Arrival(1, None, 40, 5, session="1", think_ns=1_000)
    batcher = prompts_then_decoders()
    workload = Workload((first, second), {0: 1})
    result = simulate(batcher, workload, given_ms(prefill=10, decode=5), settings(context_capacity=100))
    assert result.refused == 1
    assert [(o.index, o.arrived_ns) for o in result.outcomes] == [(1, 1_000)]


def test_an_answer_is_cut_where_the_context_ends(prompts_then_decoders, given_ms):
    batcher = prompts_then_decoders()
    result = simulate(
        batcher, of_counts([(0, 97, 9), (0, 10, 9)]), given_ms(prefill=10, decode=5), settings(context_capacity=100)
    )
    assert sorted((o.prompt_tokens, o.output_tokens) for o in result.outcomes) == [(10, 9), (97, 3)]
    assert result.truncated == 1


@pytest.mark.parametrize(("known", "limit"), [(False, 70), (True, 5)])
def test_the_batcher_knows_an_answers_length_only_when_told(prompts_then_decoders, given_ms, known, limit):
    batcher = prompts_then_decoders()
    simulate(
        batcher,
        of_counts([(0, 30, 5)]),
        given_ms(prefill=10, decode=5),
        settings(context_capacity=100, known_output_lengths=known),
    )
    assert batcher.specs[0].max_output_tokens == limit


def test_a_batcher_that_plans_nothing_while_requests_wait_is_an_error(prompts_then_decoders, given_ms):
    batcher = prompts_then_decoders(slots=1)
    batcher.plan = lambda: None
    with pytest.raises(StuckSimulation, match="1 requests are resident and 1 wait"):
        simulate(batcher, of_counts([(0, 30, 5), (0, 30, 5)]), given_ms(prefill=10, decode=5), settings())


def test_the_mean_context_counts_what_decoders_have_in_the_cache(prompts_then_decoders, given_ms):
    contexts = []

    class Asked(given_ms):
        needs_context = True

        def duration_ns(self, plan, context_tokens, now_ns):
            contexts.append((plan.shape.kind.value, context_tokens))
            return super().duration_ns(plan, context_tokens, now_ns)

    simulate(prompts_then_decoders(), of_counts([(0, 30, 3), (0, 50, 2)]), Asked(prefill=10, decode=5), settings())
    assert contexts == [("prefill", 0.0), ("prefill", 0.0), ("decode", 41.0), ("decode", 32.0)]


def test_a_step_of_a_device_allocated_graph_completes_with_its_confidence(prompts_then_decoders, given_ms):
    shape = GraphShape(GraphKind.SPECULATIVE, 4, 3, 4, allocation=Allocation.DEVICE)
    batcher = prompts_then_decoders(decode=shape)
    luck = AcceptanceLuck(Survival((0.5, 0.25, 0.25), "test"), 3)
    simulate(batcher, of_counts([(0, 30, 9)]), given_ms(prefill=10, speculative=5), settings(), luck)
    assert batcher.confidence.shape == (2, 4, 3)
    assert batcher.confidence[:, 0].tolist() == [[0.5, 0.5, 1.0], [0.5, 0.25, 0.25]]
    assert batcher.records[1][0].offered_tokens == 3


def test_drafts_without_luck_are_an_error(prompts_then_decoders, given_ms):
    batcher = prompts_then_decoders(decode=GraphShape(GraphKind.SPECULATIVE, 4, 3, 4))
    with pytest.raises(SimulationError, match="nothing says how many are accepted"):
        simulate(batcher, of_counts([(0, 30, 9)]), given_ms(prefill=10, speculative=5), settings())


def test_progress_ends_with_everyone(prompts_then_decoders, given_ms):
    seen = []
    simulate(
        prompts_then_decoders(),
        of_counts([(0, 30, 300), (0, 200, 3)]),
        given_ms(prefill=10, decode=5),
        settings(context_capacity=150),
        progress=lambda ended, total: seen.append((ended, total)),
    )
    assert seen[-1] == (2, 2)


@pytest.mark.parametrize(
    "changes", [{"queue_depth": 0}, {"queue_depth": 3}, {"request_slots": 0}, {"context_capacity": 1}]
)
def test_a_machine_that_cannot_be_is_refused(changes):
    with pytest.raises(SimulationError):
        MachineSettings(**changes)


def test_a_client_that_leaves_is_served_no_more_once_no_step_serves_it(prompts_then_decoders, given_ms):
    batcher = prompts_then_decoders()
    came = of_counts([(0, 30, 50), (0, 30, 3)])
    leaves = dataclasses.replace(came.arrivals[0], patience_ns=24_000_000)
    result = simulate(
        batcher,
        dataclasses.replace(came, arrivals=(leaves, came.arrivals[1])),
        given_ms(prefill=10, decode=5),
        settings(),
    )
    # both prompts are read by 20.75; a decode step serves both from then to 26.0, and the one that follows only one
    assert batcher.cancelled == [0]
    assert (result.left, [outcome.index for outcome in result.outcomes], result.over) == (1, [1], 2)
    assert [len(records) for records in batcher.records] == [1, 1, 2, 1]


def test_a_client_that_leaves_before_it_has_a_slot_is_never_taken_in(prompts_then_decoders, given_ms):
    batcher = prompts_then_decoders(slots=1)
    came = of_counts([(0, 30, 9), (0.001, 30, 3), (0.002, 30, 3)])
    leaves = dataclasses.replace(came.arrivals[1], patience_ns=5_000_000)
    arrivals = (came.arrivals[0], leaves, came.arrivals[2])
    result = simulate(
        batcher, dataclasses.replace(came, arrivals=arrivals), given_ms(prefill=10, decode=5), settings(request_slots=1)
    )
    assert (result.left, [outcome.index for outcome in result.outcomes]) == (1, [0, 2])
    assert batcher.cancelled == []
