"""Several prompts in one mixed graph, through the public methods (S4, S12), and saved while they are in flight."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from scheduler import Catalog, GraphKind, GraphShape, PolicyConfig, RequestScheduler, RequestSpec, layout
from scheduler.errors import InvalidCheckpoint
from scheduler.plans import BarredBy, Reason, Role
from tests.scheduler.conftest import Harness, decode, prefill
from tests.scheduler.test_forged_checkpoints import opened, sealed


def mixed(batch, capacity, prompt_rows):
    return GraphShape(GraphKind.MIXED, batch, prefill_capacity=capacity, prompt_rows=prompt_rows)


def duration_of(shape):
    """Mixed graphs cost next to nothing, so that they are chosen."""
    return 1_000_000 if shape.kind is GraphKind.MIXED else 50_000_000


SHAPES = (prefill(64), decode(1), mixed(4, 128, 3))


def decoding(shapes=SHAPES, policy=None):
    """A request "d" that has published its first token."""
    h = Harness(policy, shapes, slots=8, measured=True, durations=duration_of)
    h.admit("d", 64, 100)
    h.step()
    return h


def chunks(plan):
    return {lane.request_id: lane.prompt_tokens for lane in plan.lanes if lane.role is Role.PREFILL}


def test_prompts_share_a_graph_beside_the_decoders_and_each_goes_its_own_way():
    h = decoding()
    h.admit("whole", 50, 10)
    h.admit("tail", 45, 10)
    h.admit("part", 40, 10)
    plan = h.step()
    assert plan.shape == SHAPES[2]
    assert chunks(plan) == {"whole": 50, "tail": 45, "part": 33}
    assert plan.logical_rows == 1 + 128
    assert {lane.request_id: lane.ceiling for lane in plan.lanes} == {"d": 1, "whole": 1, "tail": 1, "part": 0}
    assert sorted(name for at, name in h.published if at == h.now_ns) == ["d", "tail", "whole"]
    state = h.scheduler._state
    consumed = {name: int(state.columns["consumed"][slot]) for name, slot in state.slot_of.items()}
    assert consumed == {"d": 64, "whole": 50, "tail": 45, "part": 33}
    assert [int(state.columns["stage"][state.slot_of[name]]) for name in ("tail", "part")] == [
        layout.DECODE,
        layout.PREFILL,
    ]


def test_no_more_prompts_ride_than_the_graph_has_rows_for():
    h = decoding((prefill(64), decode(1), mixed(4, 128, 2)))
    for name in ("a", "b", "c"):
        h.admit(name, 20, 10)
    assert len(chunks(h.step())) == 2


def test_candidates_trade_decoders_for_prompts_one_by_one():
    """Two decoders in a graph of three rows: one prompt fits beside both, a second and third displace them."""
    h = decoding((prefill(64), decode(4), mixed(2, 64, 2)))
    h.admit("e", 64, 100)
    while "e" not in h.tokens:
        h.step()
    h.admit("p", 20, 10)
    h.admit("q", 20, 10)
    h.scheduler.plan()
    slots = h.scheduler._state.slot_of
    found = [
        (sum(s in (slots["p"], slots["q"]) for s in cohort), len(cohort))
        for label, _, cohort, *_ in h.scheduler.all_candidates()
        if label.startswith("mixed")
    ]
    assert found == [(0, 2), (1, 2), (2, 2)]


def test_pages_are_counted_for_each_prompt():
    h = decoding()
    h.admit("a", 60, 10)
    h.admit("b", 60, 10)
    h.scheduler.set_resources(free_pages=64, free_snapshot_rows=0, page_tokens=16)
    plan = h.scheduler.plan()
    h.scheduler.commit(plan, h.fence + 1)
    held = {name: int(h.scheduler._state.columns["pages_held"][s]) for name, s in h.scheduler._state.slot_of.items()}
    assert held == {"d": 5, "a": 4, "b": 4}
    assert h.scheduler._state.resources.free_pages == 64 - 13
    short = decoding()
    short.admit("a", 60, 10)
    short.admit("b", 60, 10)
    short.scheduler.set_resources(free_pages=12, free_snapshot_rows=0, page_tokens=16)
    assert not chunks(short.scheduler.plan())
    barred = {
        len(cohort): barred for label, _, cohort, *_, barred, _ in short.scheduler.all_candidates() if "R3" in label
    }
    assert barred == {1: "none", 3: "pages"}


def test_a_run_goes_on_from_a_state_with_several_prompts_in_flight():
    h = decoding()
    h.admit("a", 100, 10)
    h.scheduler.admit(RequestSpec("spans", 90, 10, 1000, atomic_spans=((10, 40), (50, 80))))
    h.admit("b", 28, 10)
    plan = h.scheduler.plan()
    assert chunks(plan) == {"a": 100, "b": 28}, "no graph holds just what is left of the room up to a span's start"
    h.fence += 1
    h.scheduler.commit(plan, h.fence)
    saved = h.scheduler.checkpoint()
    restored = RequestScheduler.restore(saved, Catalog(SHAPES))
    assert restored.checkpoint() == saved
    other = decoding()
    other.scheduler, other.fence, other.now_ns = restored, h.fence, h.now_ns
    for run in (h, other):
        run.complete(plan)
    assert [h.step() for _ in range(6)] == [other.step() for _ in range(6)]


def forged(contents, change):
    """The checkpoint with its only frame's lanes changed in all their copies; `change` gets the layout.LANE rows."""
    frame = contents["queue"][0]
    cohort = np.frombuffer(frame["plan"]["cohort"], layout.LANE).copy()
    shown = [dict(lane) for lane in frame["plan"]["lanes"]]
    change(cohort)
    for row, lane in zip(cohort, shown, strict=True):
        lane["prompt_tokens"], lane["query_length"] = int(row["prompt_tokens"]), int(row["rows"])
        lane["ceiling"] = int(row["ceiling"])
    lanes = np.frombuffer(contents["arrays"]["lanes"], layout.LANE).copy().reshape(layout.FRAMES, -1)
    lanes[frame["number"], : len(cohort)] = cohort
    frame = frame | {"plan": frame["plan"] | {"cohort": cohort.tobytes(), "lanes": shown}}
    return contents | {"queue": [frame], "arrays": contents["arrays"] | {"lanes": lanes.tobytes()}}


def set_tokens(*tokens):
    def change(cohort):
        prompts = np.flatnonzero(cohort["prompt_tokens"])
        for place, count in zip(prompts, tokens, strict=True):
            cohort["prompt_tokens"][place] = cohort["rows"][place] = count

    return change


@pytest.mark.parametrize("tokens", [(50, 50, 29), (50, 50, 51), (50, 50, -1), (50, 50, 2**40)])
def test_prompts_in_flight_that_no_graph_holds_are_refused(tokens):
    h = decoding()
    for name in ("a", "b", "c"):
        h.admit(name, 50, 10)
    plan = h.scheduler.plan()
    h.scheduler.commit(plan, h.fence + 1)
    contents = opened(h.scheduler.checkpoint())
    RequestScheduler.restore(sealed(forged(contents, lambda cohort: None)), Catalog(SHAPES))
    assert chunks(plan) == {"a": 50, "b": 50, "c": 28}
    RequestScheduler.restore(sealed(forged(contents, set_tokens(50, 50, 20))), Catalog(SHAPES))
    with pytest.raises(InvalidCheckpoint):
        RequestScheduler.restore(sealed(forged(contents, set_tokens(*tokens))), Catalog(SHAPES))


@pytest.mark.parametrize(("field", "value"), [("arrived_ns", 2**61), ("arrived_ns", -(2**60)), ("blocks", 1)])
def test_a_slot_that_its_request_does_not_make_is_refused(field, value):
    h = decoding()
    contents = opened(h.scheduler.checkpoint())
    slots = np.frombuffer(contents["arrays"]["slots"], layout.SLOT).copy()
    slots[field][0] = value
    with pytest.raises(InvalidCheckpoint):
        RequestScheduler.restore(
            sealed(contents | {"arrays": contents["arrays"] | {"slots": slots.tobytes()}}), Catalog(SHAPES)
        )


WAITING = PolicyConfig(prompt_wait_price=1000.0, prompt_rank_age_ms=30.0)


def test_ranked_prompts_ride_in_the_order_of_age_per_token_left():
    h = decoding(policy=WAITING)
    h.admit("long", 400, 10)
    h.admit("short", 40, 10)
    h.admit("middle", 90, 10)
    assert chunks(h.step()) == {"short": 40, "middle": 88}


def test_what_a_request_waited_before_admission_counts_as_its_age():
    h = decoding(policy=WAITING)
    h.admit("short", 40, 10)
    h.scheduler.admit(RequestSpec("long", 400, 10, 1000, waited_ns=60_000_000_000))
    assert chunks(h.step()) == {"long": 128}


def test_a_token_budget_serves_every_decoder_and_fills_what_it_leaves_in_the_order_of_arrival():
    shapes = (prefill(64), decode(4), mixed(8, 64, 2), mixed(8, 128, 2), mixed(8, 256, 2))
    h = decoding(shapes, PolicyConfig(token_budget=101))
    h.admit("first", 70, 10)
    h.admit("second", 200, 10)
    plan = h.step()
    assert plan.reason is Reason.TOKEN_BUDGET
    assert plan.shape.prefill_capacity == 128
    assert chunks(plan) == {"first": 70, "second": 30}
    assert "d" in {lane.request_id for lane in plan.lanes}


def test_under_cadence_no_graph_leaves_a_decoder_out():
    shapes = (prefill(512), decode(1), decode(4), mixed(8, 64, 1))
    policy = PolicyConfig(decode_cadence="on", output_token_value=0.0, token_fairness=0.0, delivery_fairness=0.0)
    without = dataclasses.replace(policy, decode_cadence="off")
    kinds = {}
    for name, chosen in (("on", policy), ("off", without)):
        h = Harness(chosen, shapes, slots=8, measured=True, durations=lambda shape: 1_000_000 + shape.physical_rows)
        h.admit("d", 64, 100)
        h.step()
        h.admit("p", 400, 10)
        plan = h.step()
        kinds[name] = plan.shape.kind
        if name == "on":
            assert BarredBy.CADENCE in {alternative.barred_by for alternative in plan.alternatives}
    assert kinds == {"on": GraphKind.MIXED, "off": GraphKind.PREFILL}


def test_a_price_of_late_gaps_is_paid_for_those_who_are_left_out():
    shapes = (prefill(512), decode(1), mixed(8, 64, 1))
    h = Harness(PolicyConfig(decode_late_price=300.0), shapes, slots=8, measured=True)
    h.admit("d", 64, 100)
    h.step()
    h.admit("p", 400, 10)
    h.now_ns += 500_000_000
    h.scheduler.advance_to(h.now_ns)
    plan = h.scheduler.plan()
    served = {lane.request_id for lane in plan.lanes}
    assert "d" in served
    left_out = [a for a in plan.alternatives if "d" not in a.request_ids]
    assert left_out
    assert all(a.parts.decode_late_relief < plan.parts.decode_late_relief for a in left_out)
    assert msgspec.structs.asdict(plan.parts)["prompt_wait_relief"] == 0.0
