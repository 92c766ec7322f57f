"""The step of prompt rows, two reliefs and six coefficients goes up and down, and operators' views stay."""

from __future__ import annotations

import datetime as dt

import alembic.command
import pytest
import sqlalchemy as sa
from factories import fill_store
from plain_minutes import assert_minutes_equal_plans, write_minutes

from scheduler.policy import COEFFICIENTS, PolicyConfig
from service.control.versions import insert, version_of
from service.store.database import check, migration_config, open_database, read_transaction, upgrade, write_transaction
from service.store.errors import UpgradeBlocked
from service.store.tables import SHAPE_COLUMNS, plan_alternatives, plan_minutes, plans, policy_versions

LATER = COEFFICIENTS[-7:]
NOW = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


def downgrade(engine):
    with write_transaction(engine) as connection:
        alembic.command.downgrade(migration_config(connection), "0007")


def labels(engine, view):
    with read_transaction(engine) as connection:
        return set(connection.exec_driver_sql(f"SELECT shape FROM {view}").scalars())


def test_rows_from_before_have_one_prompt_row_no_reliefs_and_coefficients_that_are_off(any_store, store_url):
    fill_store(any_store, plans=60, requests=5)
    write_minutes(any_store)
    downgrade(any_store)
    any_store.dispose()
    assert upgrade(store_url).before == "0007"
    with read_transaction(any_store) as connection:
        for table in (plans, plan_alternatives):
            query = sa.select(table.c.prompt_rows, table.c.prompt_wait_relief, table.c.decode_late_relief)
            assert connection.execute(query.distinct()).all() == [(1, 0.0, 0.0)]
        assert connection.execute(sa.select(plan_minutes.c.prompt_rows).distinct()).scalars().all() == [1]
        query = sa.select(*[policy_versions.c[coefficient.name] for coefficient in LATER]).distinct()
        assert connection.execute(query).all() == [tuple(coefficient.default for coefficient in LATER)]
    assert_minutes_equal_plans(any_store)
    downgrade(any_store)
    assert check(store_url).revision == "0007"


def test_a_version_of_a_preset_that_was_not_there_before_is_named_after_what_is_left_of_it(any_store, store_url):
    made = [PolicyConfig.preset(name) for name in ("interactive", "budget:512", "throughput", "balanced")]
    made.append(PolicyConfig.interactive().merged({"token_fairness": 3}))
    with write_transaction(any_store) as connection:
        numbers = [
            insert(connection, config, state="applied", actor="anna", note="", parent=None, now=NOW).version
            for config in made
        ]
    downgrade(any_store)
    of_these = policy_versions.c.version.in_(numbers)
    with read_transaction(any_store) as connection:
        names = sa.select(policy_versions.c.preset).where(of_these).order_by(policy_versions.c.version)
        found = connection.execute(names).scalars().all()
    assert found == ["balanced", "balanced", "throughput", "balanced", None]
    any_store.dispose()
    upgrade(store_url)
    with read_transaction(any_store) as connection:
        rows = connection.execute(sa.select(policy_versions).where(of_these)).mappings().all()
    assert all(version_of(row).config.preset_name == row["preset"] for row in rows), "the name says what the values are"


def test_prompt_rows_are_part_of_what_a_graph_is_and_are_added_up_on_the_way_back(any_store, store_url):
    fill_store(any_store, plans=60, requests=5)
    of_prefill = plans.c.kind == "prefill"
    mixed = {"kind": "mixed", "target_rows": 1, "prefill_capacity": 64}
    with write_transaction(any_store) as connection:
        connection.execute(plans.update().where(of_prefill).values(**mixed))
        connection.execute(plans.update().where(plans.c.kind == "mixed", plans.c.fence % 2 == 0).values(prompt_rows=4))
    write_minutes(any_store)
    assert_minutes_equal_plans(any_store)
    both = {"mixed:B1:D0:W1:P1:C64", "mixed:B1:D0:W1:P1:C64:R4"}
    for view in ("plan_timeline", "request_timeline", "shape_minutes", "device_histogram", "graph_observations"):
        assert {label for label in labels(any_store, view) if label.startswith("mixed")} == both, view
    downgrade(any_store)
    for view in ("plan_timeline", "shape_minutes"):
        assert {label for label in labels(any_store, view) if label.startswith("mixed")} == {min(both)}, view
    assert upgrade(store_url).before == "0007"
    assert_minutes_equal_plans(any_store)


@pytest.mark.postgresql
def test_views_on_the_stable_views_outlive_the_step_and_stop_its_undo(postgresql_url):
    engine = open_database(postgresql_url)
    fill_store(engine, plans=20, requests=3)
    downgrade(engine)
    with write_transaction(engine) as connection:
        connection.exec_driver_sql("CREATE VIEW mine AS SELECT shape, sample_ms FROM graph_observations")
        connection.exec_driver_sql("CREATE VIEW ours AS SELECT shape, plans FROM shape_minutes")
    upgrade(postgresql_url)
    assert labels(engine, "mine")
    with pytest.raises(UpgradeBlocked, match=r"public\.mine, public\.ours"):
        downgrade(engine)
    assert check(postgresql_url).state == "current"
    engine.dispose()


def test_views_of_an_operator_s_own_outlive_both_ways_on_sqlite(store, sqlite_url):
    fill_store(store, plans=20, requests=3)
    with write_transaction(store) as connection:
        connection.exec_driver_sql("CREATE VIEW mine AS SELECT shape, plans FROM shape_minutes")
        connection.exec_driver_sql("CREATE VIEW ours AS SELECT minute, plans FROM plan_minutes")
    write_minutes(store)
    before = labels(store, "mine")
    downgrade(store)
    upgrade(sqlite_url)
    assert labels(store, "mine") == before != set()
    with read_transaction(store) as connection:
        counted = connection.exec_driver_sql("SELECT SUM(plans) FROM ours").scalar_one()
        assert counted == connection.exec_driver_sql("SELECT SUM(plans) FROM plan_minutes").scalar_one() > 0


def test_the_key_of_the_minutes_holds_every_column_of_a_shape(any_store):
    with read_transaction(any_store) as connection:
        key = sa.inspect(connection).get_pk_constraint("plan_minutes")["constrained_columns"]
    assert key == ["minute", "run_id", *SHAPE_COLUMNS, "reason"]
