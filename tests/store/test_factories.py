"""The store factory writes rows that obey the identities that people rely on."""

from __future__ import annotations

import sqlalchemy as sa
from factories import fill_store

from service.store.database import open_database, read_transaction, upgrade
from service.store.tables import plan_lanes, plans, requests


def test_the_filled_store_holds_both_policy_versions_and_every_outcome(any_store):
    filled = fill_store(any_store, plans=60, requests=6)
    with read_transaction(any_store) as connection:
        outcomes = set(connection.scalars(sa.select(plans.c.outcome).distinct()))
        versions = set(connection.scalars(sa.select(plans.c.policy_version).distinct()))
        count = connection.scalar(sa.select(sa.func.count()).select_from(plans))
    assert outcomes == {"completed", "in_flight", "lost"}
    assert versions == {1, 2}
    assert count == 60 == len(filled.plan_keys)


def test_filled_rows_obey_the_score_identity_and_reconcile(store):
    fill_store(store, plans=150, requests=9, seed=7)
    with read_transaction(store) as connection:
        for row in connection.execute(sa.select(plans)):
            work = row.token_value + row.delivery_value + row.age_relief + row.terminal_relief
            work += row.prompt_wait_relief + row.decode_late_relief
            expected = work if row.score_kind == "work" else work / row.score_horizon_ms - row.wait_cost
            assert row.value_rate == expected
        by_plan = connection.scalar(sa.select(sa.func.sum(plans.c.output_tokens)))
        by_lane = connection.scalar(sa.select(sa.func.sum(plan_lanes.c.committed_tokens)))
        by_request = connection.scalar(sa.select(sa.func.sum(requests.c.output_tokens)))
    assert by_plan == by_lane == by_request > 0


def test_the_same_seed_writes_the_same_rows(store, tmp_path):
    second = tmp_path / "second.db"
    upgrade(str(second))
    rows = []
    for engine in (store, open_database(str(second))):
        fill_store(engine, plans=30, requests=4, seed=3)
        with read_transaction(engine) as connection:
            rows.append([tuple(row) for row in connection.execute(sa.select(plans))])
        engine.dispose()
    assert rows[0] == rows[1]
    assert len(rows[0]) == 30
