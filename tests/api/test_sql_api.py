"""POST /api/sql: bounded answers of one reading statement, in a process that can be ended."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shutil
import socket
import threading

import pytest
import sqlalchemy as sa
from factories import fill_store
from fake_engine import serving
from waiting import wait_until

from service.control.rate_limit import RateLimit
from service.store import answer_forms, asking, question_process
from service.store.database import open_database
from service.store.question import Question
from service.store.statements import Answer, ColumnType

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
# One call of one function, which asks nobody whether to go on.
STUBBORN = "SELECT instr(replace(hex(zeroblob(8000000)), '0', 'a'), replace(hex(zeroblob(4000000)), '0', 'a') || 'b')"


@pytest.fixture(scope="module")
def sql_api(_sqlite_template, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sql")
    shutil.copy(_sqlite_template, folder / "helios.db")
    store = open_database(f"sqlite:///{folder / 'helios.db'}")
    fill_store(store)
    with serving(store, folder) as api:
        yield api
    store.dispose()


@pytest.fixture
def ask(sql_api):
    """Posts a statement; each test begins with a full bucket."""
    sql_api.app.state["context"].sql_rate = RateLimit(60, 30)

    def post(statement, **fields):
        return sql_api.http.post("/api/sql", json={"statement": statement, **fields})

    return post


def test_an_answer_has_columns_types_and_rows(ask):
    answer = ask("SELECT kind, count(*) AS plans, max(committed_at) AS newest FROM plans GROUP BY kind ORDER BY kind")
    body = json.loads(answer.text, parse_constant=pytest.fail)
    assert answer.status_code == 200
    assert [column["name"] for column in body["columns"]] == ["kind", "plans", "newest"]
    assert ask("SELECT committed_at FROM plans LIMIT 1").json()["columns"] == [{"name": "committed_at", "type": "time"}]
    assert {row[0] for row in body["rows"]} >= {"decode", "prefill"}
    assert (body["truncated"], body["cut_values"]) == (None, 0)


def answered(url, statement, rows=1000, form="json"):
    """What the process would answer, in this one."""
    return question_process.answer(Question(url=url, statement=statement, rows=rows, timeout_s=20, form=form))


def test_an_answer_that_is_cut_says_so_in_its_name(ask):
    answer = ask("SELECT run_id FROM plans", rows=3, format="csv")
    assert answer.headers["helios-truncated"] == "rows"
    assert "first-3-rows" in answer.headers["content-disposition"]


def test_what_is_left_out_is_said(sqlite_url):
    """C35"""
    three = "SELECT 1 AS n UNION ALL SELECT 2 UNION ALL SELECT 3"
    assert json.loads(answered(sqlite_url, three, 2)[0])["truncated"] == "rows"
    assert json.loads(answered(sqlite_url, three, 3)[0])["truncated"] is None
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9000) SELECT"
    body = json.loads(answered(sqlite_url, f"{many} hex(zeroblob(500)) FROM n", 9000)[0])
    assert body["truncated"] == "bytes"
    assert 4000 < len(body["rows"]) < 9000
    body = json.loads(answered(sqlite_url, "SELECT hex(zeroblob(5000)) AS x")[0])
    assert body["cut_values"] == 1
    assert body["rows"][0][0].endswith("… (10,000 characters)")


def test_a_spreadsheet_finds_nothing_to_run(sqlite_url):
    values = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "plain", 'a,b\n"c"']
    select = " UNION ALL ".join("SELECT '" + value.replace("'", "''") + '\' AS "=x"' for value in values)
    text = answered(sqlite_url, select, form="csv")[0].decode()
    rows = [row[0] for row in csv.reader(io.StringIO(text, newline=""))]
    assert rows[0] == "'=x"
    assert rows[1:] == [value if value in values[-2:] else f"'{value}" for value in values]
    assert answered(sqlite_url, "SELECT -1 AS n", form="csv")[0] == b"n\r\n-1\r\n"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"statement": "DELETE FROM plans"}, 422, "statement"),
        ({"statement": ENDLESS, "timeout_s": 0.05}, 422, "statement"),
        ({"statement": 1}, 400, "statement"),
        ({}, 400, "statement"),
        ({"statement": "SELECT 1", "rows": 50_001}, 400, "rows"),
        ({"statement": "SELECT 1", "timeout_s": 31}, 400, "timeout_s"),
        ({"statement": "SELECT 1", "format": "html"}, 400, "format"),
        ({"statement": "SELECT 1", "format": ["json"]}, 400, "format"),
        ({"statement": "SELECT 1", "url": "sqlite:////etc/passwd"}, 400, "url"),
    ],
)
def test_what_cannot_be_answered_is_a_problem_with_a_reason(sql_api, ask, body, status, param):
    answer = sql_api.http.post("/api/sql", json=body)
    assert (answer.status_code, answer.json()["param"]) == (status, param)
    assert answer.json()["detail"]


def test_a_mistake_says_where_it_is(ask):
    body = ask("SELECT kind\nFROM plans\nWHERE nothing = 1").json()
    assert body["offset"] == len("SELECT kind\nFROM plans\nWHERE ")
    assert "line 3, column 7" in body["detail"]


def test_a_function_that_asks_nobody_is_ended_all_the_same(ask):
    answer = ask(STUBBORN, timeout_s=0.2)
    assert answer.status_code == 422
    assert "0.2 s" in answer.json()["detail"]


def test_a_caller_that_asks_too_often_is_told_when_it_may(sql_api, ask):
    sql_api.app.state["context"].sql_rate = RateLimit(6, 2)
    answers = [ask("SELECT 1") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].headers["retry-after"]) <= 10
    assert answers[2].json()["code"] == "too_often"


def test_a_caller_that_leaves_ends_its_statement(sql_api, ask):
    context = sql_api.app.state["context"]
    places = context.asking._places
    body = json.dumps({"statement": ENDLESS, "timeout_s": 30}).encode()
    host, port = sql_api.url.removeprefix("http://").split(":")
    head = f"POST /api/sql HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: places.taken == 1, "the statement runs")
    wait_until(lambda: places.taken == 0, "its process has ended")
    assert ask("SELECT 1 AS one").json()["rows"] == [[1]]


def test_a_caller_that_leaves_before_its_process_is_ready_leaves_none_behind(monkeypatch):
    class Process:
        ended = False

        def kill(self):
            self.ended = True

    async def story():
        may_be_ready, process = asyncio.Event(), Process()

        async def ready():
            await may_be_ready.wait()
            return process

        async def another():
            return Process()

        monkeypatch.setattr(asking, "_started", another)
        questions = asking.Asking()
        questions._ready = waited_for = asyncio.ensure_future(ready())
        caller = asyncio.ensure_future(questions._process())
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert caller.cancelled()
        may_be_ready.set()
        await waited_for
        await asyncio.sleep(0)
        return process.ended

    assert asyncio.run(story())


def test_statements_that_run_do_not_hold_up_anything_else(sql_api, ask):
    context = sql_api.app.state["context"]
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(STUBBORN, timeout_s=2))) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: context.asking._places.taken == 2, "as many run as may", 20)
    assert sql_api.http.get("/metrics").status_code == 200
    assert sql_api.chat().status_code == 200
    assert sql_api.http.get("/api/plans?limit=1").status_code == 200
    assert answers == [], "all of that was answered before the first statement"
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {422}
    assert context.asking._places.taken == 0


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_every_kind_of_value_has_a_form(kind):
    import datetime as dt
    import decimal

    at = dt.datetime(2026, 3, 1, 13, tzinfo=dt.timezone(dt.timedelta(hours=-8)))
    row = (
        1,
        2**60,
        1.5,
        float("nan"),
        float("inf"),
        decimal.Decimal("2.50"),
        None,
        True,
        b"\x01\xff",
        at,
        {"a": [1]},
        [at],
    )
    names = tuple(f"c{at}" for at in range(len(row)))
    body, told = answer_forms.written(Answer(names, (ColumnType.UNKNOWN,) * len(row), iter([row])), kind, 10)
    expected = [
        1, str(2**60), 1.5, "nan", "inf", 2.5, None, True, "01ff", "2026-03-01T21:00:00.000000Z", '{"a": [1]}',
        '["2026-03-01T13:00:00-08:00"]',
    ]  # fmt: skip
    assert (told.rows, told.cut_values) == (1, 0)
    if kind == "json":
        assert json.loads(body)["rows"] == [expected]
    else:
        found = list(csv.reader(io.StringIO(body.decode())))
        assert found[1] == ["" if value is None else str(value) for value in expected]


@pytest.mark.postgresql
def test_the_same_on_postgresql(postgresql_url, tmp_path):
    store = open_database(postgresql_url)
    fill_store(store, plans=4, requests=2)
    with serving(store, tmp_path) as api:
        url = sa.make_url(postgresql_url)
        assert url.get_backend_name() == "postgresql"
        good = api.http.post("/api/sql", json={"statement": "SELECT count(*) AS n, now() AS at FROM plans"})
        assert good.json()["rows"][0][0] == 4
        assert [column["type"] for column in good.json()["columns"]] == ["integer", "time"]
        bad = api.http.post("/api/sql", json={"statement": "SELECT pg_sleep(9)"})
        assert bad.status_code == 422
        slow = "SELECT count(*) FROM generate_series(1, 1000000000000)"
        late = api.http.post("/api/sql", json={"statement": slow, "timeout_s": 0.2})
        assert late.status_code == 422
        assert "0.2 s" in late.json()["detail"]
    store.dispose()
