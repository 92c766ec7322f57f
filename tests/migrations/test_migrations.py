"""Migrations: the same schema as the tables in code, whole or not at all, with rows in place."""

from __future__ import annotations

import ast
import datetime as dt
import pathlib

import alembic.command
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from factories import fill_store

import migrations
from scheduler.policy import COEFFICIENT_BY_NAME
from service.store import database
from service.store.database import check, migration_config, open_database, read_transaction, upgrade, write_transaction
from service.store.tables import metadata, plans, policy_applications

VERSIONS = pathlib.Path(migrations.__file__).parent / "versions"
STEP = '''"""Test step."""
import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    {up}


def downgrade() -> None:
    {down}
'''
ADD_COLUMN = 'op.add_column("plans", sa.Column("extra", sa.Integer(), server_default="7"))'
DROP_COLUMN = 'op.drop_column("plans", "extra")'


@pytest.fixture
def more_steps(tmp_path, monkeypatch):
    """Adds migrations behind the newest one: more_steps((revision, before, up, down), …)."""
    directory = tmp_path / "more_versions"
    directory.mkdir()
    original = database.migration_config

    def config(connection=None):
        made = original(connection)
        made.set_main_option("version_locations", f"{VERSIONS}:{directory}")
        return made

    def add(*steps):
        for revision, before, up, down in steps:
            text = STEP.format(revision=revision, before=before, up=up, down=down)
            (directory / f"{revision}.py").write_text(text)
        monkeypatch.setattr(database, "migration_config", config)

    return add


def revision_of(url):
    return check(url).revision


def count_plans(engine):
    with read_transaction(engine) as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(plans))


def is_of_the_code(element, name, kind, reflected, compared_to):
    """Whether the tables in code speak of it: partitions and their day are PostgreSQL's alone."""
    table = element if kind == "table" else element.table
    return table.name in metadata.tables and name != "recorded_on"


def test_the_migrated_schema_is_the_one_that_the_tables_in_code_declare(any_store):
    options = {"compare_type": True, "compare_server_default": True, "include_object": is_of_the_code}
    with read_transaction(any_store) as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_the_tables_without_a_rowid_are_those_that_the_code_declares(store):
    with read_transaction(store) as connection:
        found = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE sql LIKE '%WITHOUT ROWID%'")
        assert sorted(found.scalars()) == sorted(
            table.name for table in metadata.tables.values() if not table.dialect_options["sqlite"]["with_rowid"]
        )


def test_the_index_of_unfinished_requests_holds_only_those(any_store):
    with read_transaction(any_store) as connection:
        indexes = {index["name"]: index for index in sa.inspect(connection).get_indexes("requests")}
    condition = indexes["ix_requests_unfinished"]["dialect_options"][f"{any_store.dialect.name}_where"]
    assert str(condition).strip("()") == "finished_at IS NULL"


def test_a_version_can_be_applied_twice_after_the_same_fence(any_store):
    """An idle engine takes a version, and goes back from it before it made another plan."""
    row = {"version": 1, "run_id": "run-1", "fence": 0, "applied_at": dt.datetime(2026, 3, 1, tzinfo=dt.UTC)}
    with write_transaction(any_store) as connection:
        connection.execute(policy_applications.insert(), [row, row])
        assert connection.scalar(sa.select(sa.func.count()).select_from(policy_applications)) == 2


LATER_COLUMNS = ("prompt_rows", "prompt_wait_relief", "decode_late_relief")
LATER_COEFFICIENTS = tuple(COEFFICIENT_BY_NAME)[-7:]


def test_the_view_has_the_columns_of_plans_the_gap_the_policy_and_the_shape_and_then_what_came_later(any_store):
    with read_transaction(any_store) as connection:
        found = [column["name"] for column in sa.inspect(connection).get_columns("plan_timeline")]
    of_plans = [column.name for column in plans.columns if column.name not in LATER_COLUMNS]
    coefficients = [name for name in COEFFICIENT_BY_NAME if name not in LATER_COEFFICIENTS]
    of_policy = ["policy_actor", "policy_note", "policy_preset", "policy_applied_at", *coefficients]
    assert found == [*of_plans, "gap_ms", *of_policy, "shape", *LATER_COLUMNS, *LATER_COEFFICIENTS]


def test_every_migration_says_its_purpose_locks_and_undo():
    files = sorted(VERSIONS.glob("*.py"))
    assert files
    for file in files:
        text = ast.get_docstring(ast.parse(file.read_text())) or ""
        assert all(word in text for word in ("Purpose:", "Locks:", "Undo:")), file.name


def test_a_downgrade_removes_everything_and_an_upgrade_brings_it_back_empty(any_store, store_url):
    fill_store(any_store, plans=20, requests=3)
    with write_transaction(any_store) as connection:
        alembic.command.downgrade(migration_config(connection), "base")
    with read_transaction(any_store) as connection:
        assert set(sa.inspect(connection).get_table_names()) == {"alembic_version"}
        assert sa.inspect(connection).get_view_names() == []
    any_store.dispose()
    assert check(store_url).state == "empty"
    assert upgrade(store_url).before is None
    assert count_plans(any_store) == 0


def test_rows_survive_a_later_step_up_and_down(any_store, store_url, more_steps):
    fill_store(any_store, plans=20, requests=3)
    before = revision_of(store_url)
    more_steps(("9001", before, ADD_COLUMN, DROP_COLUMN))
    assert check(store_url).state == "older"
    assert upgrade(store_url).before == before
    assert revision_of(store_url) == "9001"
    with read_transaction(any_store) as connection:
        assert connection.exec_driver_sql("SELECT MIN(extra), MAX(extra), COUNT(*) FROM plans").one() == (7, 7, 20)
    with write_transaction(any_store) as connection:
        alembic.command.downgrade(database.migration_config(connection), before)
    assert revision_of(store_url) == before
    assert count_plans(any_store) == 20


def test_an_upgrade_that_fails_half_way_leaves_the_database_as_it_was(any_store, store_url, more_steps):
    fill_store(any_store, plans=20, requests=3)
    before = revision_of(store_url)
    more_steps(
        ("9001", before, ADD_COLUMN, DROP_COLUMN),
        ("9002", "9001", "op.execute(\"INSERT INTO plans (run_id, fence) VALUES ('x', 1)\")", "pass"),
    )
    with pytest.raises(sa.exc.IntegrityError):
        upgrade(store_url)
    assert revision_of(store_url) == before
    with read_transaction(any_store) as connection:
        assert "extra" not in {column["name"] for column in sa.inspect(connection).get_columns("plans")}
    assert count_plans(any_store) == 20


def test_migrations_without_a_connection_say_what_to_use_instead():
    with pytest.raises(RuntimeError, match=r"service\.store\.database\.upgrade"):
        alembic.command.upgrade(migration_config(), "head")


def test_a_path_with_percent_signs_can_hold_the_migrations(sqlite_url):
    engine = open_database(sqlite_url)
    with read_transaction(engine) as connection:
        config = migration_config(connection)
    engine.dispose()
    assert config.get_main_option("script_location") == str(VERSIONS.parent)
