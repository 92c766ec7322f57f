"""docs/sql-cookbook.md: every question runs on both databases and gives the answer worked out by hand."""

from __future__ import annotations

import datetime as dt
import decimal
import pathlib
import re

import pytest
from factory_cookbook import fill_cookbook_store
from sorted_days import sort_into_days

from service.store.engines import open_database
from service.store.errors import StatementError
from service.store.statements import run_statement

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "sql-cookbook.md"
YESTERDAY = "What did exploration cost yesterday?"
DIALECTS = ("sqlite", "postgresql")


def about_requests(day):
    return {
        "Why was this request slow?": [("r2", "q1", "stop", 5, 1, 42, 100, 2, 0)],
        "Which plans served this request?": [
            (2, 100, "prefill:B1:C256", "ordinary", 22, 0, "prefill", 100, 1, 1, 0, 0),
            (3, 200, "decode:B4", "ordinary", 4, 0, "decode", 1, 1, 1, 0, 0),
            (4, 1000, "decode:B4", "timing_refresh", 6, 0, "decode", 1, 1, 1, 0, 0),
        ],
        # 260 + 5 + 92 + 165 + 3 = 525 ms in all
        "Where did waiting come from?": [
            ("queue", 260, 49.5),
            ("decode", 165, 31.4),
            ("prefill", 92, 17.5),
            ("tokenize", 5, 1.0),
            ("publish", 3, 0.6),
        ],
        "Which requests were preempted?": [("r2", "q2", 2, 300, 3, "stop"), ("r2", "q3", 1, 100, 0, "error")],
        "How much of the prompts came from the cache?": [
            ("1: under 128", 4, 300, 0, 0),
            ("2: 128 to 1023", 1, 300, 256, 85.3),
            ("3: 1024 and more", 1, 1200, 900, 75),
        ],
        "How many errors and cancellations were there by hour?": [
            (f"{day} 08", 1, 1, 0),
            (f"{day} 10", 2, 0, 0),
            (f"{day} 11", 2, 1, 1),
        ],
        "Which errors did requests end with?": [("r1", "the engine ended", 1), ("r2", "no KV pages", 1)],
    }


def about_shapes(day):
    return {
        # The runs' last commits are at 62 s and 5403 s.
        "Which shapes are stale?": [
            ("r2", "prefill", 1, 256, 4202.9, 0),
            ("r1", "prefill", 1, 256, 2.0, 0),
            ("r2", "speculative", 2, 0, 2.0, 0),
            ("r1", "decode", 4, 0, 1.0, 0),
            ("r2", "decode", 4, 0, 1.0, 1),
        ],
        "How far is the predicted cost from the observed cost, by shape?": [
            ("speculative", 2, 3, 4, 0, 1.13, 2, 8, 9),
            ("decode", 4, 0, 1, 0, 1.11, 4, 4.5, 5),  # 4 5 4 5 against 5 4 6 5
            ("prefill", 1, 0, 1, 256, 1.07, 2, 15, 16),
        ],
        "What was the p99 of device time by shape in this hour?": [
            ("decode:B4", 1, 5),
            ("speculative:B2:D3:W4:P8", 2, 10),
        ],
        "How did the duration of a shape change over time?": [
            ("r1", f"{day} 08:01", 1, 5, 5, 1.25),
            ("r2", f"{day} 10:20", 2, 5, 6, 1.11),
            ("r2", f"{day} 11:30", 1, 5, 5, 1),
        ],
        # Offered and accepted: 3 2, 3 1, 3 3, 2 1
        "How many drafts are accepted per round, by depth?": [(1, 4, 4, 100), (2, 4, 2, 50), (3, 3, 1, 33.3)],
        "How many verification rows were wasted, by shape?": [(2, 4, 8, 2, 11, 4, 1)],
    }


def about_decisions(day):
    return {
        # 10 + 5 + 22 + 4 + 8 + 5, 20, 10, 6: 90 ms in all
        "Why did plans run?": [
            ("ordinary", 6, 54, 60),
            ("discovery", 1, 20, 22.2),
            ("acceptance_learning", 1, 10, 11.1),
            ("timing_refresh", 1, 6, 6.7),
        ],
        "Which plans won by under 1 %?": [("r2", 3, "decode", 4, 0.005, 7), ("r2", 6, "speculative", 2, 0.008, 9)],
        YESTERDAY: [
            ("acceptance_learning", 1, 10),
            ("discovery", 1, 20),
            ("timing_refresh", 1, 6),
        ],
        "How did the ledgers stand over time?": [
            ("r1", f"{day} 08", 0, 0, 0, 0, 0),
            ("r2", f"{day} 10", 5, 0, 4, 0, 20.5),
            ("r2", f"{day} 11", 0.25, 6.5, 0, 10.5, 20.5),
        ],
    }


def about_policy_and_runs(day):
    return {
        # Version 1: 10 + 5 + 20 + 22 + 4 + 6 = 67 ms and 9 tokens; version 2: 23 ms and 12 tokens
        "What changed with policy version 2?": [(1, 6, 11.17, 9, 134.3), (2, 3, 7.67, 12, 521.7)],
        "Who changed the policy, and why?": [
            (3, "refused", "bob", "bolder", 2, None, None),
            (2, "applied", "anna", "shorter gaps", 1, "r2", 4),
            (1, "applied", "default", "", None, "r1", 0),
            (1, "applied", "default", "", None, "r2", 0),
        ],
        "Which policy changes did not go through?": [
            (f"{day} 10:45:00", "bob", "refused", "the engine ended"),
            (f"{day} 10:31:00", "bob", "stale", "version 2 is newer"),
        ],
        "Which runs were there, and with which settings?": [
            ("r2", f"{day} 10:00:00", None, "0.2.0", "m", "cpu", "float32", "3"),
            ("r1", f"{day} 08:00:00", "failed: killed", "0.1.0", "m", "cpu", "float32", "0"),
        ],
        "Which minutes were the busiest?": [
            (f"{day} 10:20", 4, 52, 6),
            (f"{day} 11:30", 3, 23, 12),
            (f"{day} 08:01", 2, 15, 3),
        ],
        "When did the device stand idle while requests waited?": [
            ("r2", 7, 991.5, 1),
            ("r1", 2, 989.5, 1),
            ("r2", 6, 989.5, 2),
            ("r2", 4, 795.5, 2),
            ("r2", 2, 79.5, 2),
            ("r2", 3, 77.5, 2),
        ],
        "Where were records lost?": [("r1", 4, 6, 3, "missing tail"), ("r2", None, None, None, "budget")],
        "Which plans did not complete?": [("r1", 3, "decode", "lost"), ("r2", 8, "decode", "in_flight")],
    }


def answers(day):
    """The expected rows of each question, over the data of factory_cookbook on `day`."""
    return about_requests(day) | about_shapes(day) | about_decisions(day) | about_policy_and_runs(day)


def parse(text):
    """The statements of each question, by database: {question: {"sqlite": ..., "postgresql": ...}}."""
    found = {}
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        question, body = section.split("\n", 1)
        assert question not in found, f"asked twice: {question}"
        blocks = re.findall(r"^```sql ?(\w*)\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL)
        assert sorted(name for name, _ in blocks) in ([""], sorted(DIALECTS)), f"one block, or one of each: {question}"
        found[question] = {
            name or dialect: sql for name, sql in blocks for dialect in DIALECTS if name in ("", dialect)
        }
        assert body.split("```")[0].strip().endswith("."), f"how is the answer read? {question}"
    return found


def ask(url, statement, day="2026-03-01"):
    statement = statement.replace("2026-03-01", str(day))
    with run_statement(url, statement, 30) as answer:
        return [tuple(float(v) if isinstance(v, decimal.Decimal) else v for v in row) for row in answer.rows]


def yesterday():
    return dt.datetime.now(dt.UTC).date() - dt.timedelta(days=1)


@pytest.fixture
def day():
    """Yesterday, since one question asks of it; when midnight passes meanwhile that question is not looked at."""
    return yesterday()


@pytest.fixture
def filled_url(store_url, day):
    engine = open_database(store_url)
    fill_cookbook_store(engine, day)
    sort_into_days(engine)
    engine.dispose()
    return store_url


def test_every_question_has_an_expected_answer_and_the_other_way_round(day):
    questions = parse(PAGE.read_text())
    assert list(questions) == list(answers(day))
    assert len(questions) >= 15


def test_every_question_is_answered_as_by_hand(filled_url, day):
    dialect = "sqlite" if filled_url.startswith("sqlite") else "postgresql"
    expected = answers(day)
    got = {question: ask(filled_url, blocks[dialect], day) for question, blocks in parse(PAGE.read_text()).items()}
    passed_over = set() if yesterday() == day else {YESTERDAY}
    assert {q: rows for q, rows in got.items() if rows != expected[q] and q not in passed_over} == {}


@pytest.mark.parametrize("days", [-1, 1])
def test_yesterday_is_one_day(store_url, day, days):
    engine = open_database(store_url)
    fill_cookbook_store(engine, day + dt.timedelta(days=days))
    engine.dispose()
    dialect = "sqlite" if store_url.startswith("sqlite") else "postgresql"
    found = ask(store_url, parse(PAGE.read_text())[YESTERDAY][dialect])
    assert found == [] or yesterday() != day


def test_a_broken_question_is_noticed(filled_url):
    broken = PAGE.read_text().replace("queue_ms, tokenize_ms", "queue_msec, tokenize_ms")
    dialect = "sqlite" if filled_url.startswith("sqlite") else "postgresql"
    with pytest.raises(StatementError, match="queue_msec"):
        ask(filled_url, parse(broken)["Why was this request slow?"][dialect])


def test_an_empty_store_has_no_answers(store_url):
    dialect = "sqlite" if store_url.startswith("sqlite") else "postgresql"
    for question, blocks in parse(PAGE.read_text()).items():
        assert ask(store_url, blocks[dialect]) == [], question
