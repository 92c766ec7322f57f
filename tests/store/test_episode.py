"""The episode of a plan that a ledger paid for, on both databases."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from factories import fill_store

from service.store.database import write_transaction
from service.store.queries import get_plan, list_plans
from service.store.tables import plans


def change(engine, key, **values):
    with write_transaction(engine) as connection:
        connection.execute(sa.update(plans).where(plans.c.run_id == key[0], plans.c.fence == key[1]).values(**values))


@pytest.mark.parametrize(("reason", "ledger"), [("timing_refresh", "timing"), ("acceptance_learning", "acceptance")])
def test_a_probe_has_an_episode_with_what_it_was_charged(any_store, reason, ledger):
    fill_store(any_store, plans=20, requests=3)
    run = list_plans(any_store).items[0]["run_id"]
    fences = sorted(plan["fence"] for plan in list_plans(any_store, run=run).items)
    for place, fence in enumerate(fences):
        paid = {f"{ledger}_spent_ms": 10.0 if place < 7 else 17.5, f"{ledger}_credit_ms": 40.0}
        change(any_store, (run, fence), reason="ordinary", **paid)
    probe = fences[4]
    change(any_store, (run, probe), reason=reason)
    plan = get_plan(any_store, run, probe)
    assert plan.episode == {
        "run_id": run,
        "ledger": reason,
        "fence": probe,
        "opened_at": plan.plan["committed_at"],
        "closed_at": plan.plan["completed_at"],
        "credit_before_ms": 40.0,
        "charged_ms": 7.5,
        "outcome": plan.plan["outcome"],
    }
    change(any_store, (run, fences[9]), reason=reason)
    assert get_plan(any_store, run, fences[9]).episode["charged_ms"] is None, "no later plan shows it"
    assert get_plan(any_store, run, fences[5]).episode is None
