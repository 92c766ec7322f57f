"""Preferences beyond the specification on the virtual device: what they promise, and what must not wait for ever."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler import GraphKind, GraphShape, PolicyConfig, Reason, layout, planning
from scheduler.records import ImageSpan
from tests.scheduler.differential.scenario import INTERACTIVE
from tests.scheduler.traces.device import MS, Trace, decode, mixed, prefill, state_graph

DECODES = tuple(map(decode, (1, 2, 4, 8)))
PREFILLS = tuple(map(prefill, (64, 256, 1024)))
MIXED = tuple(mixed(batch, capacity, 2) for batch in (2, 4, 8) for capacity in (64, 256))
CADENCE = PolicyConfig(decode_cadence="on")
FOREVER = 100_000


def answering(shapes, policy, answers=3):
    """A trace in which so many answers without an end run already, on pages of one token."""
    trace = Trace(shapes, policy=policy)
    trace.scheduler.set_resources(1 << 20, 0, page_tokens=1)
    for i in range(answers):
        trace.admit(f"answer {i}", prompt=1, output=FOREVER)
    while not all(trace.visible.values()):
        trace.step()
    return trace


def steps_until(trace, name, most):
    """Runs until the request's first token is visible; at most so many graphs."""
    plans = []
    while not trace.visible[name]:
        plans.append(trace.step())
        assert len(plans) <= most, f"{name} still waits after {most} graphs"
    return plans


def answered(plan):
    return {lane.request_id for lane in plan.lanes if lane.role.value == "decode"}


def test_under_cadence_every_graph_serves_every_answer_while_prompts_are_read():
    trace = answering((*DECODES, *PREFILLS, *MIXED), CADENCE)
    for i in range(3):
        trace.admit(f"prompt {i}", prompt=1000, output=1)
    plans = [trace.step() for _ in range(60)]
    assert all(len(answered(plan)) == 3 for plan in plans)
    assert all(trace.visible[f"prompt {i}"] for i in range(3))
    without = answering((*DECODES, *PREFILLS, *MIXED), PolicyConfig())
    without.admit("prompt", prompt=1000, output=1)
    assert any(len(answered(without.step())) < 3 for _ in range(60))


def test_a_scored_prompt_is_read_under_cadence_though_no_graph_serves_it_beside_answers():
    scoring = GraphShape(GraphKind.SCORED_PREFILL, 1, prefill_capacity=256)
    trace = answering((*DECODES, *PREFILLS, *MIXED, scoring), PolicyConfig(**INTERACTIVE))
    trace.admit("scored", prompt=1000, output=1, scored=True)
    plans = steps_until(trace, "scored", 200)
    assert sum(plan.shape.kind is GraphKind.SCORED_PREFILL for plan in plans) == 4


def test_an_image_that_no_mixed_graph_holds_is_read_alone_under_cadence():
    trace = answering((*DECODES, *PREFILLS, *MIXED, state_graph(GraphKind.VISION)), PolicyConfig(**INTERACTIVE))
    trace.admit("picture", prompt=1000, output=1, images=(ImageSpan(100, 700),))
    plans = steps_until(trace, "picture", 200)
    kinds = [plan.shape.kind for plan in plans if any(lane.request_id == "picture" for lane in plan.lanes)]
    assert kinds[0] is GraphKind.VISION
    assert GraphKind.PREFILL in kinds


@pytest.mark.parametrize(("free_pages", "batch"), [(2, 2), (1, 1)])
def test_bars_of_cadence_are_lifted_where_pages_leave_nothing_else(free_pages, batch):
    trace = answering((*DECODES, *PREFILLS), CADENCE, answers=2)
    trace.scheduler.set_resources(free_pages, 0, page_tokens=1)
    assert trace.scheduler.plan().shape == decode(batch)


def test_a_graph_that_prepares_a_state_has_no_token_budget():
    trace = answering((*DECODES, *PREFILLS, *MIXED, state_graph(GraphKind.VISION)), PolicyConfig(token_budget=200))
    trace.admit("picture", prompt=300, output=1, images=(ImageSpan(100, 150),))
    reasons = {plan.shape.kind: plan.reason for plan in steps_until(trace, "picture", 200)}
    assert reasons.pop(GraphKind.VISION) is Reason.ORDINARY
    assert set(reasons.values()) == {Reason.TOKEN_BUDGET}


def test_a_token_budget_is_kept_and_reads_prompts_in_the_order_of_their_arrival():
    budget = 200
    trace = answering((*DECODES, *PREFILLS, *MIXED), PolicyConfig(token_budget=budget))
    trace.admit("second", prompt=500, output=1)
    trace.admit("third", prompt=64, output=1)
    trace.admit("first", prompt=300, output=1, waited_ns=50 * MS)
    plans = steps_until(trace, "third", 20)
    assert {plan.reason for plan in plans} == {Reason.TOKEN_BUDGET}
    assert all(len(answered(plan)) == 3 for plan in plans)
    assert [plan.logical_rows for plan in plans] == [budget] * 4 + [3 + 864 - 4 * (budget - 3)]
    ends = [trace.visible[name][0] for name in ("first", "second", "third")]
    assert ends == sorted(ends)


def test_an_old_long_prompt_is_read_though_short_ones_never_cease_to_come():
    """Short prompts bring more work than there is time for, so that by tokens left alone it would wait for ever."""
    policy = PolicyConfig(**INTERACTIVE | {"prompt_rank_age_ms": 30.0})
    trace = answering((*DECODES, *PREFILLS, *MIXED), policy, answers=1)
    trace.admit("long", prompt=2000, output=1)
    come = 0
    for _ in range(150):
        while trace.scheduler.resident_count < 8:
            trace.admit(f"short {come}", prompt=100, output=1)
            come += 1
        trace.step()
        if trace.visible["long"]:
            break
    assert trace.visible["long"]
    assert come > 60
    assert trace.visible["short 40"][0] < trace.visible["long"][0]


def test_a_pool_that_grows_is_not_read_beyond_its_end_where_lateness_has_a_price():
    policy = PolicyConfig(**{**INTERACTIVE, "decode_cadence": "off"})
    trace = answering((*map(decode, (1, 2, 4)), prefill(64), *MIXED), policy, answers=5)
    trace.admit("long", prompt=500, output=3)
    trace.admit("other", prompt=500, output=3)
    expected = trace.scheduler.plan()
    assert expected.parts.decode_late_relief != 0.0
    planner = next(part for part in vars(trace.scheduler).values() if isinstance(part, planning.Planner))
    for size in range(1, 17, 2):
        planner._pool = np.zeros((2, size), np.int64)
        planner._candidates = layout.zeros(layout.CANDIDATE, 512)
        planner._collect_arguments()
        assert trace.scheduler.plan() == expected
