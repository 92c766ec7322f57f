"""Solo chunking: its table of launches and first-token times, and its two stalls."""

from __future__ import annotations

import pytest

from scheduler import GraphKind, PolicyConfig, Reason
from tests.scheduler.traces.device import MS, Trace, prefill, state_graph

CAPACITIES = (64, 128, 256, 512, 1024, 2048, 4096)
SHAPES = (state_graph(GraphKind.INIT), *map(prefill, CAPACITIES))


def ms(shape):
    return 0.1 if shape.kind is GraphKind.INIT else 2.0 + shape.prefill_capacity / 64


def first_token(prompt, chunking, drift=1.0):
    trace = Trace(SHAPES, ms=ms, policy=PolicyConfig(prefill_chunking=chunking), measured=False)
    for shape in SHAPES:
        wrong = drift if shape.prefill_capacity == 4096 else 1.0
        for _ in range(9):  # a whole window, so that a few true samples do not repair the capture
            trace.scheduler.catalog.observe(shape, round(ms(shape) * wrong * MS), trace.now_ns)
    begin = trace.now_ns
    trace.admit("a", prompt=prompt, output=1)
    plans = trace.run_until_idle()
    launches = sum(plan.shape.kind is not GraphKind.INIT for plan in plans)
    return launches, (trace.visible["a"][0] - begin) / MS, plans


@pytest.mark.parametrize(
    ("prompt", "chunking", "drift", "launches", "first_ms"),
    [
        (3504, "measured", 1.0, 3, 62.10),
        (3504, "deterministic", 1.0, 1, 66.10),
        (3504, "measured", 1.6, 3, 62.10),
        (3504, "deterministic", 1.6, 1, 66.10),
        (14_000, "measured", 1.0, 6, 232.10),
        (14_000, "deterministic", 1.0, 4, 232.10),
        (14_000, "measured", 1.6, 9, 238.10),
        (14_000, "deterministic", 1.6, 4, 232.10),
    ],
)
def test_the_table_of_launches_and_first_tokens(prompt, chunking, drift, launches, first_ms):
    count, first, _ = first_token(prompt, chunking, drift)
    assert (count, round(first, 2)) == (launches, first_ms)


def test_a_chunk_by_the_rule_says_so():
    _, _, plans = first_token(14_000, "deterministic")
    assert {plan.reason for plan in plans if plan.shape.kind is GraphKind.PREFILL} == {Reason.SOLO_PREFILL}


def stalled_trace(**spec):
    """Costs of 1 ms up to 2048, and 4096 unmeasured: the case in which the rule's only offer would be dropped."""
    trace = Trace(SHAPES, ms=lambda s: 1.0, policy=PolicyConfig(prefill_chunking="deterministic"), measured=False)
    for shape in SHAPES[:-1]:
        trace.scheduler.catalog.observe(shape, MS, trace.now_ns)
    trace.admit("a", prompt=6000, output=1, **spec)
    return trace


def test_an_atomic_span_over_the_end_of_the_full_chunk_does_not_stall_a_solo_request():
    trace = stalled_trace(atomic_spans=((2000, 5000),))
    plans = trace.run_until_idle()
    assert trace.tokens["a"] == 1
    assert sum(lane.prompt_tokens for plan in plans for lane in plan.lanes) == 6000


def test_a_message_boundary_and_a_span_do_not_stall_a_solo_request():
    trace = stalled_trace(atomic_spans=((1000, 4100),), message_boundaries=(1000, 5000))
    trace.run_until_idle()
    assert trace.tokens["a"] == 1


def test_company_ends_the_rule():
    trace = Trace(SHAPES, ms=ms, policy=PolicyConfig(prefill_chunking="deterministic"))
    trace.admit("a", prompt=14_000, output=1)
    trace.admit("b", prompt=14_000, output=1)
    plans = trace.run_until_idle()
    assert plans[2].reason is Reason.ORDINARY
