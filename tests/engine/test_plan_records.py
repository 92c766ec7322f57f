"""A packed plan is, once read, the record that its plain twin makes of the plan's lanes and runner-ups."""

from __future__ import annotations

import dataclasses
import operator

import msgspec
import pytest

from scheduler import layout
from scheduler.plans import BarredBy, CostState, LedgerBalances, Reason, Role, ScheduledPlan
from scheduler.records import PROPOSAL_SOURCES
from scheduler.scheduler import RequestScheduler
from service.engine import plan_records
from service.engine.plan_records import PlanRecords, plan_committed
from service.journal.errors import UnknownLayout
from service.journal.packed import LAYOUT, LAYOUTS, decode_packed, decode_records, unpack_plan
from service.journal.records import PackedPlan, PlanCommitted, encoder
from service.recorder.values import postgresql_values, sqlite_values
from tests.recorder.packed_plans import written_rows
from tests.scheduler.differential.drive import run_scenario

SEEDS = range(24)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[ScheduledPlan, PackedPlan, PlanCommitted]]:
    """Plans of every kind with their packed and their plain record, both made when the plan was committed."""
    made = []
    maker = PlanRecords()

    def commit(scheduler, plan, fence, real=RequestScheduler.commit):
        packed = maker.record(plan, fence, fence % 2, 7 * fence, 5 * fence, 3)
        real(scheduler, plan, fence)
        made.append((plan, packed, plan_committed(plan, fence, fence % 2, 7 * fence, 5 * fence, 3)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestScheduler, "commit", commit)
        patch.setattr(plan_records, "MOST_CACHED", 8)  # forgotten now and then
        for seed in SEEDS:
            assert run_scenario(seed, 40).difference is None
    return made


def test_a_packed_plan_is_read_as_the_plain_record(pairs):
    for _, packed, plain in pairs:
        assert isinstance(packed, PackedPlan)
        (read,) = decode_records(encoder.encode([packed]))
        assert encoder.encode(read) == encoder.encode(plain)  # to the bit, NaN included


def test_the_plans_that_were_compared_are_of_every_kind(pairs):
    seen = [plain for _, _, plain in pairs]
    assert len(seen) > 500
    assert {plan.score_kind for plan in seen} == {"rate", "work"}
    assert {plan.reason for plan in seen} >= {"ordinary", "discovery", "timing_refresh"}
    assert {plan.cost_state for plan in seen} == {"unknown", "fresh", "stale"}
    assert {lane.role for plan in seen for lane in plan.lanes} >= {"prefill", "decode", "terminal", "snapshot"}
    assert {lane.proposal_source for plan in seen for lane in plan.lanes} == {None, "learned", "copy"}
    others = [other for plan in seen for other in plan.alternatives]
    assert {other.barred_by for other in others} >= {"none", "pruned", "needs_empty_window"}
    following = {(other.following_kind, other.following_shape) for other in others if other.following_kind}
    assert following
    assert all(label.startswith(f"{kind}:") for kind, label in following)
    assert any(plan.following_shape for plan in seen)
    assert max(len(plan.alternatives) for plan in seen) == layout.RECORDED - 1


def test_a_plan_without_rows_gets_the_plain_record(pairs):
    plan = pairs[0][0]
    bare = ScheduledPlan(
        plan.shape, plan.lanes, plan.reason, plan.score_kind, plan.score, plan.log_scale, plan.parts,
        plan.selected_cost_ns, plan.observation_age_ns, plan.cost_state, plan.exploration_credit_ns, plan.ledgers,
        plan.alternatives, plan.margin, plan.candidates, plan.active_decoders, plan.logical_rows, plan.planned_ns,
        plan.lane_epochs,
    )  # fmt: skip
    assert isinstance(PlanRecords().record(bare, 1, 0, 1, 1, 1), PlanCommitted)


def test_the_layout_is_the_schedulers():
    """On a failure: add the next number to packed.LAYOUTS, write that (LAYOUT), and leave the earlier ones alone."""
    written = LAYOUTS[LAYOUT]
    for table, dtype in (
        (written.lane, layout.LANE),
        (written.detail, layout.LANE_DETAIL),
        (written.candidate, layout.CANDIDATE),
    ):
        assert dtype.itemsize == 8 * len(dtype.names)
        assert table.columns == tuple(name + "*" * (dtype[name].kind == "f") for name in dtype.names)
    value = operator.attrgetter("value")
    assert written.reasons == tuple(map(value, Reason))[: len(written.reasons)]
    assert LAYOUTS[max(LAYOUTS)].reasons == tuple(map(value, Reason))
    assert written.roles == tuple(map(value, Role))
    assert written.cost_states == tuple(map(value, CostState))
    names = ["NOT_BARRED", *(name.upper() for name in written.barred[1:])]
    assert [getattr(layout, name) for name in names] == list(range(len(written.barred)))
    assert {*LAYOUTS[max(LAYOUTS)].barred, "needs_empty_window"} == set(map(value, BarredBy))
    assert written.sources == PROPOSAL_SOURCES
    assert layout.CANDIDATE.names[:2] == ("graph", "following")
    assert tuple(LedgerBalances.__struct_fields__) == (
        "timing_credit_ms", "timing_spent_ms", "timing_ordinary_ms", "acceptance_credit_ms", "acceptance_spent_ms",
        "acceptance_ordinary_ms", "discovery_ms",
    )  # fmt: skip


def test_a_layout_of_another_version_is_refused_and_not_misread(pairs):
    packed = msgspec.structs.replace(pairs[0][1], layout=7)
    with pytest.raises(UnknownLayout, match="has layout 7 and this program knows 1, 2; read it with the version"):
        unpack_plan(packed)


@pytest.mark.parametrize("field", ["lanes", "details", "candidates", "slots", "request_ids"])
def test_rows_that_do_not_fit_are_refused(pairs, field):
    packed = next(packed for _, packed, plain in pairs if len(plain.lanes) > 1 and plain.alternatives)
    unit = {"slots": 8, "request_ids": 1}.get(field)
    value = getattr(packed, field)
    size = unit or len(value) // (len(packed.lanes) // layout.LANE.itemsize)
    for cut in {1, size}:
        with pytest.raises(UnknownLayout, match=f"does not fit its layout {LAYOUT}"):
            unpack_plan(msgspec.structs.replace(packed, **{field: value[:-cut]}))
    with pytest.raises(UnknownLayout):
        unpack_plan(msgspec.structs.replace(packed, shapes=msgspec.Raw(encoder.encode([]))))


def test_layouts_are_complete():
    for written in LAYOUTS.values():
        assert all(getattr(written, field.name) for field in dataclasses.fields(written))


@pytest.mark.parametrize("values", [sqlite_values(), postgresql_values()])
def test_the_recorder_stores_of_packed_plans_what_it_stores_of_plain_ones(pairs, values):
    for start in range(0, len(pairs), 50):  # fences begin anew with each scenario, and stand for nothing here
        some = [msgspec.structs.replace(packed, fence=n) for n, (_, packed, _) in enumerate(pairs[start : start + 50])]
        plain = [msgspec.structs.replace(plan, fence=n) for n, (_, _, plan) in enumerate(pairs[start : start + 50])]
        read = decode_packed(encoder.encode(some))
        assert {type(record) for record in read} == {PackedPlan}
        assert (
            written_rows(read, values, 0) == written_rows(decode_records(encoder.encode(plain)), values, 0) is not None
        )
