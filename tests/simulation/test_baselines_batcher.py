"""A baseline as a batcher: admission, one frame in flight, prompts that become decoders, slots that come back."""

from __future__ import annotations

import pytest

from scheduler.errors import InvalidFence, SlotsFull, StalePlan
from scheduler.records import CompletionRecord, ExecutionTiming, FinishReason, RequestSpec
from scheduler.simulation.baselines.batcher import BaselineBatcher, BaselineStep
from scheduler.simulation.baselines.naming import named_baseline
from scheduler.simulation.baselines.rules import chunked_prefill
from scheduler.simulation.baselines.steps import StepGraphs
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.measured import parse_catalog

TIMING = ExecutionTiming((1_000_000,), 1_000_000)


def _graphs() -> StepGraphs:
    lines = ["kind,B,D,W,P,prefill_capacity,duration_ms", "decode,8,0,1,8,0,5", "prefill,1,0,0,512,512,9"]
    return StepGraphs(parse_catalog("\n".join(lines), "small.csv"))


def _batcher(slots: int = 4, budget: int = 100) -> BaselineBatcher:
    return BaselineBatcher(chunked_prefill(budget), _graphs(), slots)


def _spec(name: str, prompt: int, output: int = 3, cached: int = 0, context: int = 1 << 20) -> RequestSpec:
    return RequestSpec(name, prompt, output, context, cached)


def _run(batcher: BaselineBatcher, fence: int, finished: str = "") -> BaselineStep:
    """Plans, commits and completes one step; each lane emits as many tokens as it may."""
    step = batcher.plan()
    assert step is not None
    batcher.commit(step, fence)
    records = [
        CompletionRecord(
            lane.handle,
            lane.prompt_tokens,
            (0,) * lane.ceiling,
            finished=FinishReason.STOP if lane.request_id == finished else None,
        )
        for lane in step.lanes
    ]
    batcher.complete(fence, records, TIMING)
    return step


def _lanes(step: BaselineStep) -> list[tuple[str, int, int]]:
    return [(lane.request_id, lane.prompt_tokens, lane.ceiling) for lane in step.lanes]


def test_a_prompt_is_cut_at_the_budget_and_its_last_chunk_delivers_the_first_token() -> None:
    batcher = _batcher()
    batcher.admit(_spec("a", 150))
    assert [_lanes(_run(batcher, fence)) for fence in (1, 2, 3)] == [[("a", 100, 0)], [("a", 50, 1)], [("a", 0, 1)]]


def test_cached_prompt_tokens_are_not_computed() -> None:
    batcher = _batcher()
    batcher.admit(_spec("a", 150, cached=120))
    assert _lanes(_run(batcher, 1)) == [("a", 30, 1)]


def test_a_decoder_rides_with_the_next_prompts_and_counts_apart_from_them() -> None:
    batcher = _batcher()
    batcher.admit(_spec("a", 10))
    _run(batcher, 1)
    batcher.admit(_spec("b", 20))
    batcher.admit(_spec("c", 200))
    step = _run(batcher, 2)
    assert _lanes(step) == [("a", 0, 1), ("b", 20, 1), ("c", 79, 0)]
    assert (step.decoders, step.prompt_tokens) == (1, 99)


def test_a_request_leaves_at_its_last_token_or_when_it_stops_and_its_slot_is_used_again() -> None:
    batcher = _batcher(slots=2)
    first = batcher.admit(_spec("a", 10, output=1))
    batcher.admit(_spec("b", 10, output=50))
    with pytest.raises(SlotsFull):
        batcher.admit(_spec("c", 10))
    _run(batcher, 1)
    third = batcher.admit(_spec("c", 10))
    assert (third.slot, third.generation) == (first.slot, first.generation + 1)
    _run(batcher, 2, finished="b")
    assert [lane[0] for lane in _lanes(_run(batcher, 3))] == ["c"]


def test_the_context_limits_the_output() -> None:
    batcher = _batcher()
    batcher.admit(_spec("a", 10, output=50, context=12))
    _run(batcher, 1)
    _run(batcher, 2)
    assert batcher.plan() is None


def test_nothing_is_planned_while_a_step_is_in_flight_or_nobody_is_there() -> None:
    batcher = _batcher()
    assert batcher.plan() is None
    batcher.admit(_spec("a", 10))
    step = batcher.plan()
    assert step is not None
    batcher.commit(step, 1)
    assert batcher.plan() is None
    with pytest.raises(StalePlan, match="frame 1"):
        batcher.commit(step, 2)
    with pytest.raises(InvalidFence, match="fence 2"):
        batcher.complete(2, [], TIMING)


def test_a_budget_below_the_slots_is_refused() -> None:
    baseline = named_baseline("budget:32")
    assert baseline is not None
    with pytest.raises(SimulationError, match="64 request slots need a budget of at least 64"):
        baseline.batcher(_graphs(), 64)
