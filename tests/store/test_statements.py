"""An operator's statement reads and does nothing else, on either database, and a mistake in it has a place."""

from __future__ import annotations

import pathlib

import pytest
from factories import fill_store
from hypothesis import given
from hypothesis import strategies as st

from service.store.database import open_database, read_transaction
from service.store.errors import StatementError
from service.store.positions import in_words
from service.store.postgresql_reading import without_end, words
from service.store.statements import run_statement


def ask(url, statement, timeout_s=20):
    with run_statement(url, statement, timeout_s) as answer:
        return list(answer.rows)


ON_EITHER = (
    "DELETE FROM plans",
    "UPDATE plans SET kind = 'x' RETURNING kind",
    "INSERT INTO alembic_version VALUES ('x') RETURNING *",
    "WITH gone AS (SELECT 1) DELETE FROM plans RETURNING *",
    "DROP TABLE plans",
    "CREATE TEMP TABLE mine (a int)",
    "CREATE VIEW mine AS SELECT 1",
    "SELECT 1; DELETE FROM plans",
    "SELECT 1) AS a; DELETE FROM plans; SELECT * FROM (SELECT 1",
    "VACUUM",
    "ANALYZE",
    "BEGIN",
    "COMMIT",
    "SAVEPOINT a",
)
ON_SQLITE = (
    "ATTACH 'other.db' AS other",
    "VACUUM INTO 'other.db'",
    "PRAGMA query_only = OFF",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA hard_heap_limit = 0",
    "SELECT * FROM pragma_journal_mode",
    "SELECT * FROM pragma_wal_checkpoint",
    "SELECT * FROM pragma_database_list",
    "SELECT load_extension('/lib/x86_64-linux-gnu/libc.so.6')",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('mine', 'x')",
    "SELECT fts3_tokenizer('simple', x'00')",
    "SELECT edit('x')",
)
ON_POSTGRESQL = (
    "COPY plans TO '/tmp/mine'",
    "COPY plans TO PROGRAM 'touch /tmp/mine'",
    "COPY (SELECT 1) TO STDOUT",
    "DO $$ BEGIN NULL; END $$",
    "CALL nothing()",
    "SET ROLE postgres",
    "RESET ROLE",
    "SET TRANSACTION READ WRITE",
    "LISTEN a",
    "LOCK TABLE plans",
    "EXPLAIN ANALYZE SELECT 1",
    "EXECUTE a",
    "FETCH ALL FROM a",
    "WITH gone AS (DELETE FROM plans RETURNING *) SELECT * FROM gone",
    "SELECT * INTO mine FROM plans",
    "SELECT * FROM plans FOR UPDATE",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT pg_sleep(60)",
    'SELECT "pg_sleep" /* one */ -- two\n (60)',
    "SELECT pg_catalog.pg_sleep(60)",
    'SELECT U&"\\0070g_sleep"(60)',
    "SELECT E'a'\n'\\' || ', pg_sleep(60) --'",
    "SELECT E'a'-- one\n\t'\\' || ', rolpassword FROM pg_authid --'",
    "SELECT pg_terminate_backend(1)",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_notify('a', 'b')",
    "SELECT set_config('role', 'postgres', false)",
    "SELECT SET_CONFIG('statement_timeout', '0', false)",
    "SELECT current_setting('data_directory')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT lo_create(1)",
    "SELECT nextval('policy_attempts_id_seq')",
    "SELECT setseed(0.5)",
    "SELECT query_to_xml('SELECT pg_sleep(60)', true, true, '')",
    "SELECT table_to_xml('pg_authid', true, true, '')",
    "SELECT database_to_xml(true, true, '')",
    "SELECT * FROM ts_stat('SELECT pg_sleep(60)')",
    "SELECT * FROM pg_authid",
    'SELECT * FROM "pg_shadow"',
    "TABLE pg_settings",
    "SELECT $1",
)


@pytest.mark.parametrize("statement", ON_EITHER)
def test_what_would_write_is_refused_and_changes_nothing(statement, store_url):
    engine = open_database(store_url)
    filled = fill_store(engine, plans=4, requests=2)
    with pytest.raises(StatementError):
        ask(store_url, statement)
    with read_transaction(engine) as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM plans").scalar() == len(filled.plan_keys)
    engine.dispose()


@pytest.mark.parametrize("statement", ON_SQLITE)
def test_sqlite_opens_no_other_file_and_keeps_its_session(statement, sqlite_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StatementError):
        ask(sqlite_url, statement)
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before and "-" not in path.name] == []


@pytest.mark.postgresql
@pytest.mark.parametrize("statement", ON_POSTGRESQL)
def test_postgresql_runs_nothing_but_what_reads_the_store(statement, postgresql_url):
    with pytest.raises(StatementError) as refused:
        ask(postgresql_url, statement)
    assert "no answer within" not in str(refused.value), "it was run"
    assert not pathlib.Path("/tmp/mine").exists()


@pytest.mark.postgresql
def test_a_statement_has_no_right_but_reading(postgresql_url):
    """Also where the store's user is a superuser: what the words let through, the role does not."""
    assert ask(postgresql_url, "SELECT current_user::text") == [("pg_read_all_data",)]


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("SELECT 'pg_sleep(1)', $q$ pg_sleep(1); $q$, E'it\\'s -- ', U&'\\0061' /* pg_sleep /* nested */ (1) */",
         [("pg_sleep(1)", " pg_sleep(1); ", "it's -- ", "a")]),
        ("SELECT 'a'\n'b', E'\\'' || 'c'", [("ab", "'c")]),
        ("SELECT 1 AS a, 2 AS a; -- the end", [(1, 2)]),
        ("VALUES (1), (2) ;;", [(1,), (2,)]),
        ("WITH a AS (SELECT 3 AS b) SELECT b FROM a ORDER BY b", [(3,)]),
        ("SELECT random() < 2, pg_typeof(1)::text", [(True, "integer")]),
        ("SELECT i FROM generate_series(3, 1, -1) AS i", [(3,), (2,), (1,)]),
    ],
)  # fmt: skip
def test_what_only_reads_runs_as_it_stands(statement, rows, postgresql_url):
    assert ask(postgresql_url, statement) == rows


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("SELEKT 1", "line 1, column 1"),
        ("SELECT kind\nFROM plans\nWHERE WHERE kind = 'x'", "line 3, column 7"),
        ("SELECT 'FROM' AS a FROM plans FROM plans", "line 1, column 31"),
        ("SELECT\n  nothing FROM plans", "line 2, column 3"),
        ("SELECT * FROM\tnowhere", "line 1, column 15"),
        ("SELECT nix(1)", "line 1, column 8"),
    ],
)
def test_a_mistake_has_its_place(statement, place, store_url):
    with pytest.raises(StatementError) as refused:
        ask(store_url, statement)
    assert place in str(refused.value)
    assert in_words(statement, refused.value.offset) == place


PIECES = st.lists(
    st.sampled_from(["'", '"', "$$", "$a$", "/*", "*/", "--", "\n", "E'", "\\", "pg_x", "(", ";", " ", "é", "1", "a$"])
)


@given(PIECES)
def test_the_words_of_any_text_are_found_or_something_is_never_closed(pieces):
    statement = "".join(pieces)
    try:
        found = words(statement)
    except StatementError:
        return
    for word in found:
        assert word.text.replace('"', '""').lower() in statement.lower()
    assert statement.startswith(without_end(statement))
    assert not without_end(statement).endswith(";") or "'" in statement or '"' in statement or "$" in statement


@given(PIECES)
def test_what_a_text_or_comment_hides_is_no_word(pieces):
    inside = "".join(pieces)
    assert [w.text for w in words("SELECT '" + inside.replace("'", "''").replace("\\", "") + "' x")] == ["select", "x"]
    assert [w.text for w in words('SELECT "' + inside.replace('"', '""') + 'z" x')][1] == inside + "z"
    assert [w.text for w in words("SELECT $q$" + inside + "$q$ x")] == ["select", "x"]
    plain = inside.replace("*/", "").replace("/*", "").replace("*", "").replace("/", "")
    assert [w.text for w in words("SELECT /*" + plain + "*/ x")] == ["select", "x"]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT json_extract('[', '$')",
        "SELECT json_extract(replace(hex(zeroblob(40000)), '00', '['), '$')",
    ],
)
def test_a_text_that_is_no_json_is_no_damage_of_the_store(statement, sqlite_url):
    with pytest.raises(StatementError, match="malformed JSON; nothing was changed"):
        ask(sqlite_url, statement)


@pytest.mark.postgresql
def test_what_postgresql_itself_bounds_is_the_statements_fault(postgresql_url):
    for statement in ("SELECT chr(0)", f"SELECT {'(' * 20_000}1{')' * 20_000}"):
        with pytest.raises(StatementError, match="nothing was changed"):
            ask(postgresql_url, statement)
