"""helios sql: one reading statement on either database, in three forms, within limits."""

from __future__ import annotations

import csv
import io
import json
import types

import pytest
import sqlalchemy as sa

from service.store import postgresql_answers, statements
from service.store.database import open_database, upgrade
from service.store.errors import StatementError

SERIES = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i, 'x' AS i2 FROM n"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
WRITES = [
    "DELETE FROM plans",
    "INSERT INTO alembic_version VALUES ('x')",
    "DROP TABLE plans",
    "CREATE TABLE mine (a int)",
    "SELECT 1; DELETE FROM alembic_version",
    "SELECT 1; COMMIT; DELETE FROM alembic_version",
    "COMMIT; DELETE FROM alembic_version",
    "VACUUM",
    "BEGIN",
]


@pytest.fixture
def store(store_url):
    upgrade(store_url)
    return store_url


def versions(url: str) -> list[str]:
    engine = open_database(url, readonly=True)
    with engine.connect() as connection:
        found = list(connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars())
    engine.dispose()
    return found


def test_an_answer_is_a_table_csv_or_json(helios, store):
    command = ("sql", SERIES.format(3), "--database", store)
    assert [line.split() for line in helios(*command).stdout.splitlines()] == [
        ["i", "i2"],
        *([f"{n}", "x"] for n in (1, 2, 3)),
    ]
    rows = list(csv.reader(io.StringIO(helios(*command, "--csv").stdout)))
    assert rows == [["i", "i2"], ["1", "x"], ["2", "x"], ["3", "x"]]
    assert json.loads(helios(*command, "--json").stdout)[2] == {"i": 3, "i2": "x"}


def test_texts_in_csv_are_no_formulas_unless_they_are_asked_for_as_they_are(helios, store):
    command = ("sql", "SELECT '=1+1' AS \"@a\", '-x' AS b, 'a=b' AS c, -5 AS d", "--database", store)
    rows = list(csv.reader(io.StringIO(helios(*command, "--csv").stdout)))
    assert rows == [["'@a", "b", "c", "d"], ["'=1+1", "'-x", "a=b", "-5"]]
    assert list(csv.reader(io.StringIO(helios(*command, "--csv", "--raw").stdout)))[1] == ["=1+1", "-x", "a=b", "-5"]
    refused = helios(*command, "--raw")
    assert refused.exit_code != 0
    assert "add --csv" in refused.output


def test_an_answer_too_wide_for_a_table_is_whole_one_value_a_line(helios, store):
    wide = "SELECT * FROM plan_minutes"
    assert helios("sql", wide, "--database", store).stdout.startswith("no rows of minute, run_id, kind, ")
    word, names = "w" * 150, ", ".join(f"{n} AS column_{n}" for n in range(12))
    answer = helios(
        "sql", f"SELECT '{word}' AS word, {names} UNION ALL SELECT 'two words', {names}", "--database", store
    )
    lines = answer.stdout.splitlines()
    assert lines[:3] == ["row 1", f"  word       {word}", "  column_0   0"]
    assert lines[14:16] == ["row 2", "  word       two words"]
    assert len(lines) == 28


def test_an_answer_as_wide_as_the_page_is_a_table(helios, store):
    fits = helios("sql", f"SELECT '{'w' * 197}' AS a, 1 AS b", "--database", store).stdout
    assert fits.splitlines() == [f"a{' ' * 198}b", f"{'w' * 197}  1"]


def test_the_statement_may_come_from_standard_input_and_end_with_a_semicolon(helios, store):
    result = helios("sql", "-", "--database", store, "--json", input="SELECT 'a%b' AS text, NULL AS none;\n")
    assert json.loads(result.stdout) == [{"text": "a%b", "none": None}]


def test_columns_of_one_name_are_all_there(helios, store):
    command = ("sql", "SELECT 1 AS a, 2 AS a", "--database", store)
    assert json.loads(helios(*command, "--json").stdout) == [{"a": 1, "a_2": 2}]
    assert helios(*command).stdout.split() == ["a", "a", "1", "2"]


@pytest.mark.parametrize("form", [(), ("--csv",), ("--json",)])
def test_rows_beyond_the_limit_are_left_out_and_said(form, helios, store):
    command = ("sql", "--database", store, *form, "--rows", "700")
    cut = helios(*command, SERIES.format(701))
    assert (cut.exit_code, cut.stderr) == (0, "helios sql: there are more than 700 rows; --rows prints more\n")
    assert "700" in cut.stdout
    assert "701" not in cut.stdout
    assert helios(*command, SERIES.format(700)).stderr == ""


@pytest.mark.parametrize("statement", WRITES)
def test_nothing_is_written(statement, helios, store):
    before = versions(store)
    result = helios("sql", statement, "--database", store)
    assert result.exit_code == 2, result.stdout
    assert result.stderr.startswith("helios sql: ")
    assert result.stderr.count("\n") == 1
    assert versions(store) == before


@pytest.mark.parametrize(
    "statement", ["ATTACH 'other.db' AS other", "PRAGMA query_only=OFF", "PRAGMA journal_mode=DELETE"]
)
def test_a_sqlite_session_stays_as_it_is(statement, helios, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    helios("db", "upgrade", "--data-dir", tmp_path)
    result = helios("sql", statement, "--data-dir", tmp_path)
    assert result.exit_code == 2
    assert "only statements that read" in result.stderr
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("", "empty"),
        (" ; ", "empty"),
        ("SELEKT 1", "syntax"),
        ("SELECT 1; SELECT 2", "only one may run at a time, and nothing was changed\n"),
        ("DELETE FROM plans", "read"),
        ("SELECT nothing FROM plans", "nothing"),
        ("SELECT * FROM nowhere", "nowhere"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(statement, said, helios, store):
    result = helios("sql", statement, "--database", store)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_statement_that_does_not_end_is_stopped(helios, store):
    result = helios("sql", ENDLESS, "--database", store, "--timeout", "0.05")
    assert result.exit_code == 2
    assert "no answer within 0.05 s" in result.stderr


def test_a_store_that_is_missing_or_unreachable_is_said(helios, tmp_path):
    result = helios("sql", "SELECT 1", "--database", tmp_path / "none.db")
    assert result.exit_code == 2
    assert "helios db upgrade" in result.stderr


def test_two_forms_at_once_are_refused(helios, store):
    result = helios("sql", "SELECT 1", "--database", store, "--csv", "--json")
    assert result.exit_code == 2
    assert "choose one" in result.stderr


def test_a_file_that_is_no_database_is_said_as_by_other_commands(helios, tmp_path):
    path = tmp_path / "letter.db"
    path.write_bytes(b"Dear aunt, " * 1000)
    result = helios("sql", "SELECT 1 FROM plans", "--database", path)
    assert result.exit_code == 2
    assert "restore a copy" in result.stderr
    assert result.stderr.count("\n") == 1


def test_ctrl_c_ends_a_statement_and_is_no_passed_limit(sqlite_url, monkeypatch):
    """The signal that comes while SQLite works is raised in the handler that watches the time, and kept there."""
    times = iter([0.0])

    def monotonic() -> float:
        time = next(times, None)
        if time is None:
            monkeypatch.setattr(statements.time, "monotonic", lambda: 1.0)
            raise KeyboardInterrupt
        return time

    monkeypatch.setattr(statements, "time", types.SimpleNamespace(monotonic=monotonic))
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(KeyboardInterrupt), statements.run_statement(sqlite_url, endless, 600) as answer:
        list(answer.rows)


MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) SELECT "
MEGABYTE = "hex(zeroblob(500000))"
BOMBS = {
    "a value": ("SELECT zeroblob(2000000000)", "one value or row may have 64 MiB"),
    "a text that grows": (
        "SELECT replace(hex(zeroblob(9000000)), '0', '0123456789')",
        "one value or row may have 64 MiB",
    ),
    "a text of all rows": (f"{MANY}group_concat({MEGABYTE}) FROM n", "one value or row may have 64 MiB"),
    "a row": (
        "SELECT " + ", ".join(f"hex(zeroblob({20_000_000 + at}))" for at in range(40)),
        "the statement needs more than 256 MiB of memory",
    ),
    "an answer": (f"{MANY}{MEGABYTE} FROM n", "the answer takes more than 67 MiB"),
    "a long statement": (f"SELECT '{'x' * 2_000_000}'", "too large"),
    "a deep statement": (f"SELECT {'+'.join('1' * 3000)}", "maximum depth"),
    "a wide pattern": (f"SELECT 'a' LIKE '{'%a' * 1000}'", "too complex"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_would_fill_the_memory_is_refused_in_one_line(bomb, helios, sqlite_url):
    statement, said = BOMBS[bomb]
    result = helios("sql", "-", "--database", sqlite_url, "--csv", input=statement)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("form", [("--json",), ("--parquet", "out.parquet")])
def test_an_answer_larger_than_its_rows_allow_is_refused_in_every_form(form, helios, sqlite_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = helios("sql", f"{MANY}{MEGABYTE} FROM n", "--database", sqlite_url, *form)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the answer takes more than 67 MiB" in result.stderr
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.postgresql
def test_large_rows_of_postgresql_are_not_gathered(helios, postgresql_url):
    statement = "SELECT repeat('x', 30000000) FROM generate_series(1, 500)"
    result = helios("sql", statement, "--database", postgresql_url, "--csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the answer takes more than 67 MiB" in result.stderr


@pytest.mark.postgresql
def test_a_value_of_postgresql_that_is_too_large_never_leaves_the_server(postgresql_url, monkeypatch):
    """The driver holds a row whole, so the server gives NULL and the size instead."""
    monkeypatch.setattr(postgresql_answers, "LARGEST_ROW", 1000)
    monkeypatch.setattr(statements, "LARGEST_VALUE", 1000)
    received = []
    whole = statements._within_row_size
    monkeypatch.setattr(statements, "_within_row_size", lambda rows: whole(received.append(r) or r for r in rows))
    statement = "SELECT 7 AS n, repeat('x', 400 * i) AS a, ARRAY[repeat('y', 400)] AS b FROM generate_series(1, 2) AS i"
    with statements.run_statement(postgresql_url, statement, 60) as answer:
        assert next(answer.rows) == (7, "x" * 400, ["y" * 400])
        with pytest.raises(StatementError, match="one value or row may have"):
            next(answer.rows)
    assert received[1] == (1202, 7, None, None)


@pytest.mark.postgresql
def test_types_of_arrays_are_not_those_of_their_elements(postgresql_url):
    with statements.run_statement(postgresql_url, "SELECT ARRAY[1, 2] AS a, 1 AS b", 60) as answer:
        assert [kind.value for kind in answer.types] == ["unknown", "integer"]
        assert list(answer.rows) == [([1, 2], 1)]
