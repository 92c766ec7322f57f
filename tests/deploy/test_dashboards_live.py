"""Every panel's query, against a live Prometheus and PostgreSQL after a short load: none is empty."""

from __future__ import annotations

import math
import re

import pytest

from tests.deploy.grafana_files import BOARDS, expand_promql, expand_sql, queries, used_variables, variables
from tests.deploy.live_stack import NOTE, STREAMS, Stack, get, stack
from tests.deploy.test_alerts import CONTENT

pytestmark = [pytest.mark.prometheus, pytest.mark.postgresql, pytest.mark.e2e, pytest.mark.timeout(300)]

WINDOW = "15s"
QUIET = {
    "Failed": "no request failed",
    "Records lost": "nothing was lost",
    "Spans lost": "nothing was lost",
    "Records lost per second": "nothing was lost",
    "Spans behind": "there is no collector",
    "Troubles": "there were none",
    "Write-ahead log": "PostgreSQL's is its own",
    "Prompt tokens from the prefix cache": "a simulated device caches no states",
}
"""Panels that are 0 after this load, and why. Every other one must show something else."""


@pytest.fixture(scope="module")
def live(tmp_path_factory, module_postgresql_url) -> Stack:
    with stack(tmp_path_factory.mktemp("live"), module_postgresql_url) as running:
        yield running


@pytest.fixture(scope="module")
def chosen(live) -> dict[str, dict[str, list[str]]]:
    """By dashboard, what "All" of each of its variables stands for."""
    return {name: {v["name"]: values_of(live, v) for v in variables(board).values()} for name, board in BOARDS.items()}


def values_of(live: Stack, variable: dict) -> list[str]:
    if variable["type"] == "custom":
        return [value.strip() for value in variable["query"].split(",")]
    if variable["type"] == "textbox":
        return [variable["query"]]
    if (labels := re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])) is not None:
        return get(f"{live.prometheus}/api/v1/label/{labels[2]}/values", **{"match[]": labels[1]})
    return [row["__value"] for row in live.rows(variable["query"])]


@pytest.fixture(scope="module")
def answers(live, chosen) -> dict[str, list[dict]]:
    """What every query gives: rows, or series."""
    return {query.name: answer(live, chosen, query) for query in queries()}


def answer(live: Stack, chosen: dict, query) -> list[dict]:
    """What a query gives, asked as Grafana asks it for the time of the load."""
    if query.sql:
        return live.rows(expand_sql(query.text, chosen[query.board], live.began, live.ended + 1, "1s"))
    return live.query(expand_promql(query.text, chosen[query.board], WINDOW, f"{math.ceil(live.ended - live.began)}s"))


def numbers(query, found: list[dict]) -> list[float]:
    """Every finite number of an answer; of a table, one for each row."""
    if not query.sql:
        values = [float(value) for series in found for _, value in series["values"]]
    elif query.target["format"] == "table":
        values = [1.0] * len(found)
    else:
        assert all("time" in row for row in found)
        values = [value for row in found for name, value in row.items() if name not in ("time", "metric")]
    return [float(value) for value in values if value is not None and math.isfinite(value)]


@pytest.mark.parametrize("query", list(queries()), ids=lambda query: query.name)
def test_a_panels_query_has_an_answer(answers, query):
    finite = numbers(query, answers[query.name])
    assert finite, "empty"
    if query.panel["title"] in QUIET:
        assert not any(finite), "it is not quiet: take it out of QUIET"


def test_every_panel_but_the_quiet_ones_shows_more_than_nothing(answers):
    shown = {query.panel["title"] for query in queries() if any(numbers(query, answers[query.name]))}
    titles = {query.panel["title"] for query in queries()}
    assert titles - shown == QUIET.keys()


def test_latency_panels_have_exemplars_whose_trace_the_client_chose(live, chosen):
    latency = [q for q in queries() if q.target.get("exemplar") and q.board == "serving"]
    assert len(latency) >= 4
    for query in latency:
        text = expand_promql(query.text, chosen["serving"], WINDOW, "1m")
        traces = {one["labels"]["trace_id"] for series in live.exemplars(text) for one in series["exemplars"]}
        assert traces, query.name
        assert {int(trace, 16) for trace in traces} <= set(range(1, STREAMS + 1)), query.name


def test_legends_name_labels_that_the_series_have_and_stay_readable(answers):
    for query in queries():
        if not query.sql:
            found = answers[query.name]
            labels = set(re.findall(r"\{\{(\w+)\}\}", query.target["legendFormat"]))
            assert all(labels <= series["metric"].keys() for series in found), query.name
            if query.panel["type"] != "heatmap":
                assert len(found) <= 16, query.name


def test_shares_lie_between_nothing_and_everything(answers):
    defaults = {query.name: query.panel.get("fieldConfig", {}).get("defaults", {}) for query in queries()}
    shares = [q for q in queries() if defaults[q.name].get("max") == 1 and defaults[q.name]["unit"] == "percentunit"]
    assert len(shares) >= 6
    for query in shares:
        finite = numbers(query, answers[query.name])
        assert min(finite) >= 0, query.name
        assert max(finite) <= 1 + 1e-9, query.name


@pytest.mark.parametrize("ledger", ["timing_refresh", "acceptance_learning"])
def test_a_ledger_keeps_no_more_than_its_bound_and_has_spent_of_it(answers, ledger):
    rows = answers[f"exploration: Ledger of {ledger} A"]
    assert all(row["earned and kept"] <= row["bound"] + 1e-6 for row in rows)
    assert all(row["earned and kept"] == pytest.approx(row["spent"] + row["balance"]) for row in rows)
    assert rows[-1]["spent"] > 0


def test_what_a_table_says_of_a_column_is_of_one_that_it_has(answers):
    for query in queries():
        if query.panel["type"] == "table":
            row = answers[query.name][0]
            named = {override["matcher"]["options"] for override in query.panel["fieldConfig"]["overrides"]}
            assert named <= row.keys(), query.name
            assert sum(widths(query.panel, row)) <= 50 * query.panel["gridPos"]["w"], query.name


def widths(panel: dict, row: dict) -> list[int]:
    """Of a table's columns, in pixels at least."""
    given = {
        override["matcher"]["options"]: one["value"]
        for override in panel["fieldConfig"]["overrides"]
        for one in override["properties"]
        if one["id"] == "custom.width"
    }
    least = panel["fieldConfig"]["defaults"]["custom"]["minWidth"]
    return [given.get(column, least) for column in row]


def test_every_variable_has_values(live, chosen):
    for name, values in chosen.items():
        for variable, found in values.items():
            assert found, (name, variable)


def test_an_annotation_says_who_changed_the_policy_and_why(live):
    for board in BOARDS.values():
        for annotation in board.get("annotations", {}).get("list", ()):
            rows = live.rows(expand_sql(annotation["target"]["rawSql"], {}, live.began, live.ended, "1s"))
            assert [row["text"] for row in rows] == [f"Policy version 2 by ann: {NOTE}"]
            assert all(row["time"] and row["tags"] for row in rows)


def test_the_last_plans_pages_are_there(live, answers):
    row = answers["plans: Last plans A"][0]
    assert live.helios.http.get(f"/dashboard/plan/{row['run_id']}/{row['fence']}").status_code == 200
    plan = live.helios.http.get(f"/api/plans/{row['run_id']}/{row['fence']}").json()["plan"]
    assert (plan["reason"], plan["device_ms"]) == (row["reason"], row["device"])


def test_no_alert_fires(live):
    rules = [rule for group in get(f"{live.prometheus}/api/v1/rules")["groups"] for rule in group["rules"]]
    assert len(rules) == sum(len(group["rules"]) for group in CONTENT["groups"])
    assert {rule["health"] for rule in rules} == {"ok"}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_an_empty_panel_is_noticed(live, chosen):
    [waiting] = [q for q in queries() if (q.board, q.panel["title"]) == ("serving", "Waiting")]
    broken = waiting._replace(target={**waiting.target, "expr": waiting.text.replace("waiting", "wating")})
    assert used_variables(broken.text) == {"instance"}
    assert numbers(waiting, answer(live, chosen, waiting))
    assert numbers(broken, answer(live, chosen, broken)) == []
