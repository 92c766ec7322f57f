"""The SQL page without a browser: its address, its reference, its chart, and what it refuses."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.errors import RefusedInput
from dashboard.figures.sql import MOST_MARKS, Column, kept, number, sql_figure
from dashboard.pages.sql.address import read_address
from dashboard.pages.sql.callbacks import drawn
from dashboard.pages.sql.reference import read_reference
from service.store.tables import metadata

NUMBERS = st.one_of(st.none(), st.integers(-9, 9), st.floats(-5, 5))


def test_the_reference_is_that_of_the_documents():
    path = pathlib.Path(__file__).parents[2] / "docs" / "make_sql_reference.py"
    spec = importlib.util.spec_from_file_location("make_sql_reference", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.TARGET.read_text(encoding="utf-8") == made.text(), "run: python docs/make_sql_reference.py"


def test_every_table_and_question_is_there():
    found = read_reference()
    assert {table["name"] for table in found["tables"]} >= set(metadata.tables)
    assert len(found["questions"]) >= 25
    assert all(question["sqlite"] and question["postgresql"] and question["how"] for question in found["questions"])


def test_an_address_says_what_is_asked_and_how_it_is_shown():
    shown = read_address("?q=SELECT+1%3B&rows=100&view=chart&x=2&y=0,1,x,3,4,5&kind=bars")
    assert (shown.statement, shown.rows, shown.view, shown.x, shown.kind) == ("SELECT 1;", "100", "chart", "2", "bars")
    assert shown.y == ("0", "1", "3", "4")
    shown = read_address("?rows=7&view=<b>&x=-1&kind=pie")
    assert (shown.statement, shown.rows, shown.view, shown.x, shown.kind) == ("", "1000", "table", None, "")


@given(st.lists(st.lists(NUMBERS, min_size=30, max_size=30), min_size=1, max_size=3), st.integers(8, 29))
def test_of_many_rows_the_extremes_stay(series, most):
    rows = kept(series, 30, most)
    assert rows == sorted(set(rows))
    assert len(rows) <= most
    assert {0, 29} <= set(rows)
    if most >= 2 + 2 * len(series):
        for values in series:
            known = [value for value in values if value is not None]
            if known:
                assert {min(known), max(known)} <= {values[row] for row in rows if values[row] is not None}


def test_a_chart_has_five_thousand_marks_at_most_and_shows_the_outlier():
    """C41"""
    count = 10_000
    values = [1.0] * count
    values[7_777] = 5_000.0
    for series in (1, 4):
        x = Column("at", list(range(count)))
        figure, shown = sql_figure(x, [Column("ms", values)] * series, "line")
        assert sum(len(trace["x"]) for trace in figure["data"]) <= MOST_MARKS
        assert shown == len(figure["data"][0]["x"])
        assert all(5_000.0 in trace["y"] for trace in figure["data"])


def test_names_and_values_stay_text_in_a_chart():
    evil = "<b onclick=alert(1)>"
    figure, _ = sql_figure(Column(evil, [evil, "a"]), [Column(evil, [1, 2]), Column("b", [True, str(2**60)])], "bars")
    assert "<" not in str([figure["data"][0]["name"], figure["data"][0]["x"], figure["layout"]["xaxis"]])
    assert figure["data"][1]["y"] == [1, 2**60]
    assert figure["layout"]["xaxis"]["type"] == "category"
    assert (
        sql_figure(Column("t", ["2026-03-01 12:00:00.000001"]), [Column("b", [1])], "line")[0]["layout"]["xaxis"][
            "type"
        ]
        == "date"
    )


GOOD = {"x": {"name": "a", "values": [1, 2]}, "y": [{"name": "b", "values": [3, None]}], "kind": "line"}


def test_a_chart_says_how_much_of_the_answer_it_shows():
    assert drawn(GOOD)[1] == "2 rows drawn, in the answer's order."
    many = list(range(10_000))
    note = drawn({"x": {"name": "a", "values": many}, "y": [{"name": "b", "values": many}], "kind": "line"})[1]
    assert "of 10,000 rows are drawn" in note
    assert "no column of numbers" in drawn(None)[1]


@pytest.mark.parametrize(
    "picked",
    [
        [],
        "x",
        GOOD | {"kind": "pie"},
        GOOD | {"x": 1},
        GOOD | {"x": {"name": 1, "values": []}},
        GOOD | {"x": {"name": "a" * 201, "values": [1, 2]}},
        GOOD | {"x": {"name": "a", "values": [1, [2]]}},
        GOOD | {"x": {"name": "a", "values": [1]}},
        GOOD | {"x": {"name": "a", "values": [1, "x" * 4000]}},
        GOOD | {"y": []},
        GOOD | {"y": [GOOD["x"]] * 5},
        {"x": {"name": "a", "values": [1] * 10_001}, "y": [{"name": "a", "values": [1] * 10_001}], "kind": "line"},
    ],
)
def test_what_the_page_never_sends_is_refused(picked):
    with pytest.raises(RefusedInput):
        drawn(picked)


def test_the_chart_is_drawn_over_http_and_nonsense_is_422(client, call):
    answer = call(client, ["sql-graph.figure", "sql-chart-note.children"], {"sql-picked.data": GOOD})
    assert answer.status_code == 200, answer.text
    assert answer.json()["response"]["sql-graph"]["figure"]["data"][0]["y"] == [3, None]
    assert call(client, ["sql-graph.figure", "sql-chart-note.children"], {"sql-picked.data": 7}).status_code == 422


@pytest.mark.parametrize(
    ("value", "drawn_as"), [("--5", None), ("-", None), ("", None), ("-9007199254740993", -9007199254740993)]
)
def test_only_a_text_that_is_a_whole_number_is_drawn_as_one(value, drawn_as):
    assert number(value) == drawn_as
