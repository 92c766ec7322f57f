"""helios sql --parquet: the same typed columns from both databases, read back by pyarrow, DuckDB and pandas."""

from __future__ import annotations

import csv
import math
import os

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from factories import fill_store
from hypothesis import given
from hypothesis import strategies as st
from plain_minutes import write_minutes

from service.store.database import open_database, read_transaction
from service.store.parquet import write_parquet
from service.store.statements import Answer, ColumnType
from service.store.tables import metadata, plans
from service.store.types import UtcDateTime

SERIES = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i FROM n"
TIME = pa.timestamp("us", tz="UTC")
TABLES = [table.name for table in metadata.sorted_tables if table.name != "journal_offsets"]
VIEWS = ["plan_timeline", "request_timeline", "shape_minutes", "device_histogram", "graph_observations"]


def fill(engine):
    fill_store(engine, plans=60, requests=5)
    write_minutes(engine)


@pytest.fixture
def filled(store_url):
    engine = open_database(store_url)
    fill(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def export(helios, store_url, tmp_path):
    """The statement's answer as an Arrow table."""

    def run(statement, *options):
        path = tmp_path / "answer.parquet"
        result = helios("sql", statement, "--database", store_url, "--parquet", path, *options)
        assert result.exit_code == 0, result.stderr
        return pq.read_table(path)

    return run


def arrow_type(column):
    if isinstance(column.type, sa.Float):
        return pa.float64()
    if isinstance(column.type, UtcDateTime):
        return TIME
    return {bool: pa.bool_(), int: pa.int64(), str: pa.string()}[column.type.python_type]


def without_days(found):
    """The answer without the column that only PostgreSQL has, by which it partitions: a date."""
    if "recorded_on" not in found.schema.names:
        return found
    assert found.schema.field("recorded_on").type == pa.date32()
    return found.drop_columns(["recorded_on"])


def typed(schema):
    """Columns and their types by name: what a later version added stands where that database puts it."""
    return sorted((field.name, str(field.type)) for field in schema)


def test_a_table_keeps_its_values_and_types(filled, export):
    found = without_days(export("SELECT * FROM plans ORDER BY run_id, fence"))
    assert typed(found.schema) == sorted((column.name, str(arrow_type(column))) for column in plans.columns)
    with read_transaction(filled) as connection:
        rows = connection.execute(sa.select(plans).order_by(plans.c.run_id, plans.c.fence)).mappings().all()
    assert len(rows) == 60
    assert found.to_pylist() == [dict(row) for row in rows]


@pytest.mark.parametrize("name", [*TABLES, *VIEWS])
def test_both_databases_give_the_same_columns(name, filled, export, helios, sqlite_url, tmp_path):
    found = without_days(export(f"SELECT * FROM {name}"))
    other = tmp_path / "other.parquet"
    engine = open_database(sqlite_url)
    if engine.url != filled.url:
        fill(engine)
    engine.dispose()
    assert helios("sql", f"SELECT * FROM {name}", "--database", sqlite_url, "--parquet", other).exit_code == 0
    assert typed(found.schema) == typed(pq.read_table(other).schema)


def test_expressions_have_one_type_on_both_databases(filled, export):
    found = export(
        "SELECT max(committed_at) AS newest, count(*) AS plans, sum(output_tokens) AS tokens, avg(fence) AS mean,"
        " round(CAST(sum(device_ms) AS numeric), 1) AS ms, max(kind) AS kind, sum(device_ms) AS exact,"
        " NULL AS none FROM plans"
    )
    integer, real, text = pa.int64(), pa.float64(), pa.string()
    assert found.schema.types == [TIME, integer, integer, real, real, text, real, text]
    (row,) = found.to_pylist()
    with read_transaction(filled) as connection:
        devices = list(connection.execute(sa.select(plans.c.device_ms).where(plans.c.device_ms.is_not(None))).scalars())
        newest = connection.execute(sa.select(sa.func.max(plans.c.committed_at))).scalar_one()
    assert (row["newest"], row["plans"], row["none"]) == (newest, 60, None)
    assert row["exact"] == pytest.approx(math.fsum(devices))
    assert row["ms"] == round(math.fsum(devices), 1)


def test_an_answer_without_rows_has_the_columns_types_all_the_same(store_url, export):
    found = export("SELECT committed_at, kind, device_ms, speculation_enabled, fence FROM plans")
    assert found.num_rows == 0
    assert found.schema.types == [TIME, pa.string(), pa.float64(), pa.bool_(), pa.int64()]


def test_duckdb_and_pandas_read_the_same_values(filled, export, tmp_path):
    statement = "SELECT run_id, fence, committed_at, speculation_enabled, device_ms FROM plans ORDER BY run_id, fence"
    rows = export(statement).to_pylist()
    path = tmp_path / "answer.parquet"
    session = duckdb.connect()
    session.execute("SET TimeZone = 'UTC'")
    duck = session.sql(f"SELECT * FROM '{path}'")
    assert [str(kind) for kind in duck.types] == [
        "VARCHAR",
        "BIGINT",
        "TIMESTAMP WITH TIME ZONE",
        "BOOLEAN",
        "DOUBLE",
    ]
    assert duck.to_arrow_table().to_pylist() == rows
    frame = pd.read_parquet(path)
    assert str(frame["committed_at"].dt.tz) == "UTC"
    assert [str(frame[name].dtype) for name in ("fence", "speculation_enabled", "device_ms")] == [
        "int64",
        "bool",
        "float64",
    ]
    again = frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert again == rows


def test_rows_beyond_the_limit_are_left_out_and_said(helios, store_url, tmp_path):
    path = tmp_path / "cut.parquet"
    command = ("sql", "--database", store_url, "--parquet", path, "--rows", "20000")
    cut = helios(*command, SERIES.format(20_001))
    assert (cut.exit_code, cut.stdout) == (0, f"{path}: 20000 rows of 1 columns\n")
    assert cut.stderr == "helios sql: there are more than 20000 rows; --rows prints more\n"
    assert pq.read_table(path).column("i").to_pylist() == list(range(1, 20_001))
    assert helios(*command, SERIES.format(20_000)).stderr == ""


def test_columns_of_one_name_are_all_there(export):
    assert export("SELECT 1 AS a, 'x' AS a").to_pylist() == [{"a": 1, "a_2": "x"}]


def test_a_failed_statement_leaves_no_file_and_the_one_that_was_there(helios, store_url, tmp_path):
    path = tmp_path / "answer.parquet"
    path.write_text("before")
    result = helios("sql", "SELECT nothing FROM plans", "--database", store_url, "--parquet", path)
    assert result.exit_code == 2
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir() if "parquet" in file.name] == ["answer.parquet"]


def test_a_place_that_cannot_be_written_is_said(helios, store_url, tmp_path):
    result = helios("sql", "SELECT 1 AS a", "--database", store_url, "--parquet", tmp_path / "none" / "a.parquet")
    assert result.exit_code == 2
    assert "cannot write it" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("length", [250, 300])
def test_a_name_that_is_too_long_is_said(helios, sqlite_url, tmp_path, length):
    result = helios("sql", "SELECT 1 AS a", "--database", sqlite_url, "--parquet", tmp_path / ("a" * length))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "cannot write it" in result.stderr


def test_what_is_no_plain_file_is_not_replaced(helios, sqlite_url, tmp_path):
    """A device, for one: whoever may write to its folder would lose it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link"):
        result = helios("sql", "SELECT 1 AS a", "--database", sqlite_url, "--parquet", path)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "is no plain file" in result.stderr
    assert pipe.is_fifo()
    assert (tmp_path / "link").is_symlink()


def test_a_link_stays_and_its_file_is_written(helios, sqlite_url, tmp_path):
    (tmp_path / "answer.parquet").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "answer.parquet")
    assert helios("sql", "SELECT 1 AS a", "--database", sqlite_url, "--parquet", tmp_path / "link").exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert pq.read_table(tmp_path / "answer.parquet").to_pylist() == [{"a": 1}]


def test_two_forms_at_once_are_refused(helios, store_url, tmp_path):
    result = helios("sql", "SELECT 1", "--database", store_url, "--json", "--parquet", tmp_path / "a.parquet")
    assert result.exit_code == 2
    assert "choose one" in result.stderr


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.binary(max_size=5)
)


@given(rows=st.lists(st.tuples(VALUES, VALUES), max_size=12), kind=st.sampled_from(ColumnType))
def test_whatever_a_column_holds_is_written(tmp_path_factory, rows, kind):
    """SQLite lets any value into any column."""
    path = tmp_path_factory.mktemp("any") / "any.parquet"
    kinds = (ColumnType.UNKNOWN, kind)
    if kind is ColumnType.JSON:
        rows = [(value, None) for value, _ in rows]
    assert write_parquet(path, Answer(("a", "b"), kinds, iter(rows)), 100) == (len(rows), False)
    found = pq.read_table(path)
    assert found.num_rows == len(rows)
    for at, name in enumerate(("a", "b")):
        assert [value is None for value in found.column(name).to_pylist()] == [row[at] is None for row in rows]


ARRAYS = (
    "SELECT array[1.5, 2.5] AS numbers, array['2026-01-01T00:00:00Z'::timestamptz] AS times,"
    " '{\"a\": [1]}'::jsonb AS object"
)


@pytest.mark.postgresql
def test_arrays_of_postgresql_are_json_in_every_form(helios, postgresql_url, tmp_path):
    """Their elements may be of types that JSON has no form for."""
    wanted = ["[1.5, 2.5]", '["2026-01-01T00:00:00+00:00"]', '{"a": [1]}']
    path = tmp_path / "answer.parquet"
    assert helios("sql", ARRAYS, "--database", postgresql_url, "--parquet", path).exit_code == 0
    assert list(pq.read_table(path).to_pylist()[0].values()) == wanted
    printed = helios("sql", ARRAYS, "--database", postgresql_url, "--csv").stdout.splitlines()
    assert next(csv.reader(printed[1:])) == wanted
    assert '{"a": [1]}' in helios("sql", ARRAYS, "--database", postgresql_url).stdout


@pytest.mark.postgresql
def test_an_answer_without_columns_is_refused(helios, postgresql_url):
    result = helios("sql", "SELECT FROM plans", "--database", postgresql_url)
    assert (result.exit_code, result.stderr.strip()) == (
        2,
        "helios sql: the answer has no columns; name some behind SELECT",
    )
