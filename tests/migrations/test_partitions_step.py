"""The step that makes partitions by day goes up and down with rows, grants, indexes and operators' views in place."""

from __future__ import annotations

import datetime as dt
import uuid

import alembic.command
import pytest
import sqlalchemy as sa
from factories import fill_store
from plain_minutes import write_minutes

from scheduler.policy import COEFFICIENT_BY_NAME
from service.store.database import check, migration_config, open_database, read_transaction, upgrade, write_transaction
from service.store.errors import UpgradeBlocked
from service.store.partitions import PARTITIONED, days_with_partitions
from service.store.tables import metadata, plan_alternatives, plan_lanes, plans

VIEWS = {
    "plan_timeline": "run_id, fence",
    "request_timeline": "run_id, fence, lane",
    "shape_minutes": "minute, run_id, shape",
    "device_histogram": "minute, run_id, shape, reason, bucket",
}


def downgrade(engine, revision):
    with write_transaction(engine) as connection:
        alembic.command.downgrade(migration_config(connection), revision)


def upgrade_to(engine, revision):
    """Not beyond a step whose undo does without such views."""
    with write_transaction(engine) as connection:
        alembic.command.upgrade(migration_config(connection), revision)


def spread(engine, days):
    """Make the plans lie on so many days, in the order of their commits, without a change of anything else."""
    with write_transaction(engine) as connection:
        found = connection.execute(sa.select(plans.c.run_id, plans.c.fence, plans.c.committed_at)).all()
        for number, (run_id, fence, at) in enumerate(sorted(found, key=lambda row: (row.committed_at, row.run_id))):
            later = at + dt.timedelta(days=number * days // len(found))
            this = (plans.c.run_id == run_id, plans.c.fence == fence)
            connection.execute(plans.update().where(*this).values(committed_at=later))


LATER = (*tuple(COEFFICIENT_BY_NAME)[-7:], "prompt_rows", "prompt_wait_relief", "decode_late_relief")
"""Columns of a step behind the one that is tested here."""


def contents(engine):
    with read_transaction(engine) as connection:
        there = sa.inspect(connection).get_table_names()
        tables = [table for table in metadata.sorted_tables if table.name in there]
        columns = {table.name: [column for column in table.columns if column.name not in LATER] for table in tables}
        found = {name: sorted(map(repr, connection.execute(sa.select(*of)))) for name, of in columns.items()}
    return {name: rows for name, rows in found.items() if rows}


def of_views(engine):
    with read_transaction(engine) as connection:
        return {
            name: [
                {column: value for column, value in row.items() if column not in LATER}
                for row in connection.exec_driver_sql(f"SELECT * FROM {name} ORDER BY {order}").mappings()
            ]
            for name, order in VIEWS.items()
        }


def indexes(engine):
    """Names and columns, the key's without the day."""
    with read_transaction(engine) as connection:
        inspector = sa.inspect(connection)
        keys = {
            table: [name for name in inspector.get_pk_constraint(table)["constrained_columns"] if name != "recorded_on"]
            for table in PARTITIONED
        }
        return keys | {
            index["name"]: (table, index["column_names"], index["unique"])
            for table in PARTITIONED
            for index in inspector.get_indexes(table)
        }


def test_rows_and_views_are_the_same_before_and_after(any_store, store_url):
    fill_store(any_store, plans=60, requests=5)
    write_minutes(any_store)
    downgrade(any_store, "0004")
    spread(any_store, 5)
    before, views, made = contents(any_store), of_views(any_store), indexes(any_store)
    for _ in range(2):
        any_store.dispose()
        assert upgrade(store_url).before == "0004"
        assert contents(any_store) == before
        assert of_views(any_store) == views
        assert indexes(any_store) == made
        downgrade(any_store, "0004")
        assert contents(any_store) == before
        assert of_views(any_store) == views
        assert indexes(any_store) == made


@pytest.mark.postgresql
def test_every_row_is_in_the_partition_of_its_plan_s_day(postgresql_url):
    engine = open_database(postgresql_url)
    fill_store(engine, plans=60, requests=5)
    downgrade(engine, "0004")
    spread(engine, 4)
    with write_transaction(engine) as connection:  # a lane that belongs to no plan stays, on no day
        connection.exec_driver_sql("UPDATE plan_lanes SET fence = 9999 WHERE fence = 2 AND lane = 0")
    upgrade(postgresql_url)
    with read_transaction(engine) as connection:
        query = sa.select(plans.c.run_id, plans.c.fence, plans.c.committed_at)
        day_of = {(run_id, fence): at.date() for run_id, fence, at in connection.execute(query)}
        assert len(set(day_of.values())) == 4
        today = dt.datetime.now(dt.UTC).date()
        ahead = {today + dt.timedelta(days=number) for number in range(3)}
        assert days_with_partitions(connection) == sorted({*day_of.values(), *ahead})
        for table in PARTITIONED:
            rows = connection.exec_driver_sql(
                f"SELECT run_id, fence, recorded_on, CAST(CAST(tableoid AS regclass) AS text) FROM {table}"
            ).all()
            assert rows
            for run_id, fence, day, partition in rows:
                expected = day_of.get((run_id, fence))
                assert day == (expected or dt.date(1970, 1, 1))
                assert partition == (f"{table}_{day:%Y%m%d}" if expected else f"{table}_default")
    engine.dispose()


@pytest.fixture
def reader(postgresql_url):
    """A role of its own, gone at the end."""
    name = f"helios_reader_{uuid.uuid4().hex[:12]}"
    engine = open_database(postgresql_url)
    with write_transaction(engine) as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name}")
    yield name
    with write_transaction(engine) as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {name}")
        connection.exec_driver_sql(f"DROP ROLE {name}")
    engine.dispose()


@pytest.mark.postgresql
def test_grants_and_an_operator_s_own_index_and_column_stay(postgresql_url, reader):
    engine = open_database(postgresql_url)
    fill_store(engine, plans=20, requests=3)
    downgrade(engine, "0004")
    with write_transaction(engine) as connection:
        connection.exec_driver_sql(f"GRANT SELECT ON plans, plan_lanes, plan_timeline TO {reader}")
        connection.exec_driver_sql("CREATE INDEX mine ON plans (kind, device_ms) WHERE device_ms > 1")
        connection.exec_driver_sql("ALTER TABLE plans ADD COLUMN my_note text DEFAULT 'none'")
    for change in (lambda: upgrade(postgresql_url), lambda: downgrade(engine, "0004")):
        change()
        with read_transaction(engine) as connection:
            may = [
                connection.exec_driver_sql(f"SELECT has_table_privilege('{reader}', '{table}', 'SELECT')").scalar_one()
                for table in ("plans", "plan_lanes", "plan_timeline", "plan_alternatives")
            ]
            assert may == [True, True, True, False]
            assert connection.exec_driver_sql("SELECT DISTINCT my_note FROM plans").scalar_one() == "none"
            (mine,) = [one for one in sa.inspect(connection).get_indexes("plans") if one["name"] == "mine"]
            assert mine["column_names"] == ["kind", "device_ms"]
    engine.dispose()


@pytest.mark.postgresql
def test_views_on_the_stable_views_outlive_the_step(postgresql_url):
    engine = open_database(postgresql_url)
    fill_store(engine, plans=20, requests=3)
    downgrade(engine, "0004")
    with write_transaction(engine) as connection:
        connection.exec_driver_sql("CREATE VIEW mine AS SELECT run_id, fence, gap_ms FROM plan_timeline")
        connection.exec_driver_sql(
            "CREATE VIEW ours AS SELECT m.*, r.role FROM mine m JOIN request_timeline r USING (run_id, fence)"
        )
    counts = []
    for change in (lambda: None, lambda: upgrade_to(engine, "0007"), lambda: downgrade(engine, "0004")):
        change()
        with read_transaction(engine) as connection:
            sums = (f"SELECT count(*), sum(gap_ms) FROM {view}" for view in ("mine", "ours"))
            counts.append([connection.exec_driver_sql(text).one() for text in sums])
    assert counts[0] == counts[1] == counts[2]
    engine.dispose()


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("start", "view", "rests_on"),
    [
        ("0004", "CREATE VIEW mine AS SELECT fence FROM plans", "plans"),
        ("0004", "CREATE MATERIALIZED VIEW mine AS SELECT lane FROM plan_lanes", "plan_lanes"),
        ("0003", "CREATE VIEW mine AS SELECT fence FROM plan_timeline", "plan_timeline"),
    ],
)
def test_a_view_that_is_in_the_way_is_named_and_nothing_is_changed(postgresql_url, start, view, rests_on):
    engine = open_database(postgresql_url)
    fill_store(engine, plans=20, requests=3)
    downgrade(engine, start)
    with write_transaction(engine) as connection:
        connection.exec_driver_sql(view)
    before = contents(engine) if start == "0004" else None
    with pytest.raises(UpgradeBlocked, match=rf"resting on .*{rests_on}.*public\.mine.*helios db upgrade"):
        upgrade(postgresql_url)
    assert check(postgresql_url).revision == start
    with write_transaction(engine) as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM mine").scalar_one() > 0
        connection.exec_driver_sql(f"DROP {view.split(' mine')[0].removeprefix('CREATE ')} mine")
    assert before is None or contents(engine) == before
    assert upgrade(postgresql_url).before == start
    engine.dispose()


@pytest.mark.postgresql
def test_a_view_in_the_way_of_the_undo_is_named_too(postgresql_url):
    engine = open_database(postgresql_url)
    with write_transaction(engine) as connection:
        connection.exec_driver_sql("CREATE VIEW mine AS SELECT sample_ms FROM graph_observations")
    with pytest.raises(UpgradeBlocked, match=r"public\.mine"):
        downgrade(engine, "0005")
    engine.dispose()


def test_the_plan_before_is_found_over_midnight(any_store, store_url):
    """gap_ms of the first plan of a day counts from the last one of the day before."""
    fill_store(any_store, plans=40, requests=4)
    downgrade(any_store, "0004")
    expected = of_views(any_store)["plan_timeline"]
    spread(any_store, 20)
    upgrade(store_url)
    gaps = [(row["run_id"], row["fence"], row["gap_ms"]) for row in of_views(any_store)["plan_timeline"]]
    assert gaps == [(row["run_id"], row["fence"], row["gap_ms"]) for row in expected]
    assert sum(gap is not None for _, _, gap in gaps) > 20
    for table in (plan_lanes, plan_alternatives):
        assert contents(any_store)[table.name]
