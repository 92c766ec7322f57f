"""Plans as callers see them: what is recorded, what waits, what does not compete (specification S4, S10)."""

from __future__ import annotations

import math

import pytest

from scheduler import BarredBy, GraphKind, GraphShape, PolicyConfig, Reason, ScoreKind, planning


def rounds(*batches):
    return tuple(GraphShape(GraphKind.DECODE, batch) for batch in batches)


def prefills(*capacities):
    return tuple(GraphShape(GraphKind.PREFILL, 1, prefill_capacity=c) for c in capacities)


def decoding(harness, count=3, output=40, **settings):
    """A harness with `count` requests that have all had their first token."""
    h = harness(measured=True, **settings)
    for i in range(count):
        h.admit(f"r{i}", prompt=64, output=output)
    for _ in range(200):
        if all(plan.lanes[0].prompt_tokens == 0 for plan in h.log[-1:]) and len(h.tokens) == count:
            return h
        h.step()
    raise AssertionError("never all decoding")


def queue_one(h):
    """Commits one plan and leaves it in flight."""
    plan = h.scheduler.plan()
    h.fence += 1
    h.scheduler.commit(plan, h.fence)
    return plan


def test_planning_changes_nothing_and_equal_states_give_equal_plans(harness):
    h = decoding(harness)
    first, second = h.scheduler.plan(), h.scheduler.plan()
    assert first == second
    assert first is not second
    assert hash(first) == hash(second)
    assert repr(first) == repr(second)


def test_a_plan_keeps_its_lanes_and_alternatives_whatever_is_planned_afterwards(harness):
    h, twin = decoding(harness), decoding(harness)
    plan, same = h.scheduler.plan(), twin.scheduler.plan()
    seen = (same.lanes, same.alternatives, same.lane_epochs)
    for _ in range(5):
        h.step()
    h.admit("other", prompt=200)
    h.scheduler.plan()
    assert (plan.lanes, plan.alternatives, plan.lane_epochs) == seen


def test_lanes_are_in_slot_order_and_alternatives_ranked_and_distinct(harness):
    h = decoding(harness, count=4)
    h.admit("new", prompt=100)
    plan = h.scheduler.plan()
    slots = [lane.handle.slot for lane in plan.lanes]
    assert slots == sorted(slots)
    assert [other.rank for other in plan.alternatives] == [1, 2, 3, 4]
    cohorts = {(other.shape, other.request_ids) for other in plan.alternatives}
    cohorts.add((plan.shape, tuple(lane.request_id for lane in plan.lanes)))
    assert len(cohorts) == 5
    assert {other.shape.kind for other in plan.alternatives} | {plan.shape.kind} == {
        GraphKind.PREFILL,
        GraphKind.DECODE,
    }


def test_the_margin_is_measured_to_the_best_other_of_the_same_score_kind(harness):
    h = decoding(harness)
    plan = h.scheduler.plan()
    others = [c for c in h.scheduler.all_candidates() if c[6] == "none" and c[5] != plan.score]
    assert plan.margin == (plan.score - max(c[5] for c in others)) / abs(plan.score)
    lonely = harness(shapes=prefills(64) + rounds(1), measured=True)
    lonely.admit("only")
    assert lonely.scheduler.plan().margin is None


@pytest.mark.parametrize("preset", ["balanced", "interactive"])
def test_small_tables_grow_until_the_decision_fits(harness, monkeypatch, preset):
    policy = PolicyConfig.preset(preset).merged({"decode_cadence": "off"})
    h = decoding(harness, count=6)
    h.scheduler.configure_policy(policy)
    expected = h.scheduler.plan()
    monkeypatch.setattr(planning, "FIRST_CANDIDATES", 1)
    monkeypatch.setattr(planning, "FIRST_POOL", 1)
    h = decoding(harness, count=6)
    h.scheduler.configure_policy(policy)
    assert h.scheduler.plan() == expected
    assert len(h.scheduler.all_candidates()) == expected.candidates > 1


def test_all_candidates_are_listed_in_catalog_order_with_what_bars_them(harness):
    h = decoding(harness, count=3)
    h.admit("new", prompt=100)
    plan = h.scheduler.plan()
    found = h.scheduler.all_candidates()
    labels = [shape.label for shape in h.scheduler.catalog.shapes]
    positions = [labels.index(candidate[0]) for candidate in found]
    assert positions == sorted(positions)
    assert len(found) == plan.candidates
    by_label = {(candidate[0], candidate[6]) for candidate in found}
    assert ("decode:B4", "none") in by_label
    assert ("decode:B8", "pruned") in by_label


def test_with_a_round_in_flight_a_winner_that_needs_an_empty_window_waits(harness):
    h = decoding(harness, count=1, output=400)
    queue_one(h)
    h.admit("starved", prompt=64)
    h.scheduler.configure_policy(PolicyConfig(output_token_value=0.0, token_fairness=0.0, delivery_fairness=0.0))
    assert h.scheduler.plan() is None
    assert any(candidate[0].startswith("prefill") for candidate in h.scheduler.all_candidates())


def test_a_losing_prefill_says_that_it_needs_an_empty_window_only_while_a_frame_is_in_flight(harness):
    h = decoding(harness, count=1, output=400)
    h.scheduler.configure_policy(PolicyConfig(output_token_value=1e6))
    h.admit("new", prompt=2000)

    def barred():
        plan = h.scheduler.plan()
        assert plan.shape.kind is GraphKind.DECODE
        return {o.barred_by for o in plan.alternatives if o.shape.kind is GraphKind.PREFILL}

    assert BarredBy.NEEDS_EMPTY_WINDOW not in barred()
    queue_one(h)
    assert BarredBy.NEEDS_EMPTY_WINDOW in barred()


def test_what_does_not_fit_the_free_pages_is_barred_and_ranked_last(harness):
    h = harness(measured=True)
    h.scheduler.set_resources(free_pages=4, free_snapshot_rows=0, page_tokens=16)
    h.admit("large", prompt=200)
    assert h.scheduler.plan() is None
    assert {candidate[6] for candidate in h.scheduler.all_candidates()} == {"pages"}
    h.scheduler.set_resources(free_pages=5, free_snapshot_rows=0, page_tokens=16)
    plan = h.scheduler.plan()
    assert plan.shape.prefill_capacity == 64
    assert [other.barred_by for other in plan.alternatives] == [BarredBy.PAGES] * len(plan.alternatives)


def test_an_unmeasured_graph_that_consumes_nothing_more_is_barred_and_never_wins(harness):
    h = harness(shapes=prefills(64, 128, 256) + rounds(1))
    for shape in h.scheduler.catalog.shapes[:1]:
        h.scheduler.catalog.observe(shape, 3_000_000, h.now_ns)
    h.admit("short", prompt=64)
    plan = h.scheduler.plan()
    assert plan.shape.prefill_capacity == 64
    assert plan.score_kind is ScoreKind.RATE
    assert {(o.shape.prefill_capacity, o.barred_by) for o in plan.alternatives} == {
        (128, BarredBy.UNMEASURED),
        (256, BarredBy.UNMEASURED),
    }


@pytest.mark.parametrize("pages", [None, 6])
def test_solo_chunking_leaves_one_capacity_to_compete_unless_that_one_is_barred(harness, pages):
    h = harness(policy=PolicyConfig(prefill_chunking="deterministic"), measured=True)
    if pages is not None:
        h.scheduler.set_resources(free_pages=pages, free_snapshot_rows=0, page_tokens=16)
    h.admit("solo", prompt=300)
    plan = h.scheduler.plan()
    capacities = {candidate[0] for candidate in h.scheduler.all_candidates()}
    if pages is None:
        assert capacities == {"prefill:B1:C512"}
        assert plan.reason is Reason.SOLO_PREFILL
        assert plan.candidates == 1
    else:
        assert len(capacities) == 4
        assert plan.shape.prefill_capacity == 64
        assert plan.reason is Reason.ORDINARY


def test_solo_chunking_ends_with_company(harness):
    h = harness(policy=PolicyConfig(prefill_chunking="deterministic"), measured=True)
    h.admit("one", prompt=300)
    h.admit("two", prompt=300)
    assert h.scheduler.plan().reason is Reason.ORDINARY
    assert len({candidate[0] for candidate in h.scheduler.all_candidates()}) == 4


@pytest.mark.parametrize("factor", [2.0**200, 2.0**900])
def test_a_common_power_of_two_on_all_values_changes_nothing_but_the_scale(harness, factor):
    def policy(times):
        return PolicyConfig(
            output_token_value=64.0 * times,
            token_fairness=0.0,
            delivery_fairness=4.0 * times,
            decode_age_price=0.125 * times,
            terminal_value=256.0 * times,
            terminal_age_price=1.0 * times,
        )

    h = decoding(harness)
    h.scheduler.configure_policy(policy(factor))
    huge = h.scheduler.plan()
    scores = [candidate[5] for candidate in h.scheduler.all_candidates()]
    h.scheduler.configure_policy(policy(1.0))
    plan = h.scheduler.plan()
    exponent = round(-huge.log_scale / math.log(2.0))
    assert plan.log_scale == 0.0
    assert huge.log_scale < 0.0
    assert huge.lanes[0].handle == plan.lanes[0].handle
    assert huge.shape == plan.shape
    assert scores == [candidate[5] * factor * 2.0**-exponent for candidate in h.scheduler.all_candidates()]


def test_a_plans_score_and_scale_are_read_by_their_documented_names(harness):
    h = harness(measured=True)
    h.admit("a")
    plan = h.step()
    parts = plan.parts
    assert plan.selection_value_rate() == parts.work / parts.horizon_ms - parts.wait_cost
    assert plan.selection_log_scale() == plan.log_scale == 0.0
