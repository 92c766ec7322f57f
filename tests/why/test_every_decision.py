"""Every decision of a recorded run comes out the same again, by the fast scheduler and by its reference."""

from __future__ import annotations

import random

import pytest
from tiny_checkpoint import write_tiny_checkpoint
from tiny_draft_head import write_tiny_draft_head

from gpu.model.weights import open_source
from scheduler.policy import PolicyConfig
from scheduler.shapes import Allocation
from service.engine.commands import use_policy
from service.ipc.messages import Sampling
from service.store.engines import write_transaction
from service.store.tables import plan_lanes, plans
from service.why.audit import Auditor
from service.why.recorded import FenceRange
from tests.engine.test_worker_every_device import DEVICES, Load
from tests.engine.test_worker_real_device import RealRig
from tests.why.recording import RUN, stored, tee

MS = 1_000_000
PRESETS = (PolicyConfig.throughput(), PolicyConfig.balanced(), PolicyConfig(adaptive_verification_alpha=0.7))


def audited(engine, **options):
    auditor = Auditor(engine, **options)
    auditor.run(FenceRange(RUN))
    return auditor.found


@pytest.mark.parametrize("device", DEVICES)
def test_every_decision_on_every_device_replays_the_same(make_rig, tmp_path, device):
    """Cancels, stops, preemption, cached states, rounds with sidecars, failed frames and changes of the policy."""
    rig = make_rig(**DEVICES[device])
    journal = tee(rig, tmp_path / "journal")
    rig.device.automatic = False
    load = Load(rig, 7)
    for number in range(160):
        load.step()
        if number % 40 == 20:
            use_policy(rig.core, 2 + number, PRESETS[number // 40 % 3])
        if number % 50 == 30:
            rig.device.lane_errors = {0: "broken"}
        if number % 70 == 50:
            rig.device.refuse("busy")
    rig.device.automatic = True
    rig.settle(20_000)
    engine = stored(journal, f"sqlite:///{tmp_path}/helios.db")
    found = audited(engine)
    assert found.difference is None, found.difference
    assert found.skipped == []
    assert found.decisions == len(rig.plans()) > 100
    assert found.checkpoints > 3
    assert found.unrecorded == 0


REAL = {
    "mixed": {"draft_tokens": 2, "head": True, "allocation": "host", "mixed": True},
    "device allocation": {
        "draft_tokens": 4, "head": True, "allocation": "device", "speculative_token_capacity": 8, "kv_pages": 12,
    },
}  # fmt: skip


@pytest.mark.parametrize("settings", REAL)
def test_every_decision_over_a_real_device_replays_the_same(tmp_path, frequent_checkpoints, settings):
    """With its own confidence, survival and durations."""
    write_tiny_checkpoint(tmp_path)
    write_tiny_draft_head(tmp_path / "head", open_source(tmp_path).config)
    given = dict(REAL[settings])
    if given.pop("head"):
        given["draft_head"] = tmp_path / "head"
    rig = RealRig(tmp_path / "rig", path=tmp_path, **given)
    rig.device.journal = None
    journal = tee(rig, tmp_path / "journal")
    choose = random.Random(5)
    for number in range(8):
        tail = [choose.randrange(256) for _ in range(5 + number * 3)]
        rig.submit(f"r{number}", token_ids=tail * 3, output=10 + 8 * number, sampling=Sampling(0.0))
        rig.step(3)
    rig.settle()
    rig.device.shut_down(abandon=False)
    kinds = {plan.shape.kind for plan in rig.plans()}
    assert "mixed" in kinds if settings == "mixed" else "speculative" in kinds
    found = audited(stored(journal, f"sqlite:///{tmp_path}/helios.db"))
    assert found.difference is None, found.difference
    assert (found.skipped, found.unrecorded) == ([], 0)
    assert found.decisions == len(rig.plans()) > 40


@pytest.mark.parametrize("lost", [{8}, {20, 21, 22}])
def test_a_lost_part_of_the_journal_is_named_and_decisions_behind_the_next_checkpoint_replay(make_rig, tmp_path, lost):
    rig = make_rig(states=True)
    journal = tee(rig, tmp_path / "journal", lose=lost)
    for number in range(12):
        rig.submit(f"r{number}", prompt=20 + number, output=12)
    rig.settle()
    found = audited(stored(journal, f"sqlite:///{tmp_path}/helios.db"))
    assert found.difference is None, found.difference
    (skipped,) = found.skipped
    assert "are missing" in skipped.why
    assert f"those from fence {skipped.last_fence + 1} on can be re-executed" in skipped.why
    count = skipped.last_fence - skipped.first_fence + 1
    assert found.decisions + count == len(rig.plans())
    assert 0 < count < len(rig.plans()) - 20


CHANGES = {
    "a score": (plans, plans.c.value_rate, 0.1),
    "a lane's price": (plan_lanes, plan_lanes.c.token_price, 0.1),
    "rows of a lane": (plan_lanes, plan_lanes.c.query_length, 1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_one_altered_number_is_found_and_named(make_rig, tmp_path, what):
    rig = make_rig(drafts=3, allocation=Allocation.HOST)
    journal = tee(rig, tmp_path / "journal")
    for number in range(6):
        rig.submit(f"r{number}", prompt=20 + number, output=12)
    rig.settle()
    engine = stored(journal, f"sqlite:///{tmp_path}/helios.db")
    assert audited(engine).difference is None
    table, column, more = CHANGES[what]
    with write_transaction(engine) as connection:
        connection.execute(table.update().where(table.c.fence == 9).values({column.name: column + more}))
    found = audited(engine)
    assert found.difference is not None
    assert (found.difference.run_id, found.difference.fence) == (RUN, 9)
    assert found.difference.between == "the rows and the replay"
    assert column.name in found.difference.details[0]
    assert found.decisions == 8
    assert found.skipped == []
