"""The committed dashboards: what the code makes, whole, readable, and free of wrong averages. Nothing runs here."""

from __future__ import annotations

import copy
import itertools
import json
import re

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from deploy.dashboards import promql
from deploy.dashboards.__main__ import files
from service.telemetry.metric_table import METRIC_BY_NAME
from tests.deploy.grafana_files import (
    BOARDS,
    PROVISIONING,
    ROOT,
    data_sources,
    panels,
    queries,
    used_variables,
    variables,
)
from tests.deploy.query_rules import calls, wrong_panel, wrong_promql, wrong_sql

every_board = pytest.mark.parametrize("name", BOARDS)
EXPECTED = {"serving", "decisions", "exploration", "speculation", "pipeline", "plans"}


def test_the_files_are_what_the_code_makes():
    made = {name.removesuffix(".json"): json.loads(text) for name, text in files().items()}
    assert made.keys() == BOARDS.keys() == EXPECTED
    for name, board in made.items():
        assert board == BOARDS[name], f"{name}.json is not what the code makes: run python -m deploy.dashboards"


def texts(board: dict) -> dict[str, str]:
    """Everything that may ask for a variable: queries, links, annotations, other variables' queries."""
    parts = {panel["title"]: json.dumps(panel) for panel in panels(board)}
    parts["annotations"] = json.dumps(board.get("annotations", {}))
    parts["variables"] = json.dumps([v.get("query", "") for v in variables(board).values() if v["type"] == "query"])
    return parts


@every_board
def test_every_variable_is_used_and_every_used_one_exists(name):
    board = BOARDS[name]
    used = set().union(*(used_variables(text) for text in texts(board).values()))
    assert used == variables(board).keys()


@every_board
def test_nothing_waits_for_an_import(name):
    text = json.dumps(BOARDS[name])
    assert "__inputs" not in text
    assert "__requires" not in text
    assert "${DS_" not in text


@every_board
def test_every_source_is_provisioned(name):
    known = data_sources()
    named = re.findall(r'"uid": "([^"]+)"', json.dumps([panels(BOARDS[name]), BOARDS[name].get("annotations", {})]))
    named += [v["datasource"]["uid"] for v in variables(BOARDS[name]).values() if v.get("datasource")]
    assert named
    assert set(named) <= known.keys()
    for panel in panels(BOARDS[name]):
        kinds = {target["datasource"]["uid"] for target in panel["targets"]}
        assert kinds == {panel["datasource"]["uid"]}, panel["title"]


@every_board
def test_panels_say_what_they_show_in_which_unit(name):
    board = BOARDS[name]
    assert board["description"]
    titles = [panel["title"] for panel in panels(board)]
    assert len(titles) == len(set(titles)) >= 5
    for panel in panels(board):
        assert len(panel["description"]) > 40, panel["title"]
        assert panel["description"][-1] in ".?", panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        if panel["type"] == "heatmap":
            assert panel["options"]["yAxis"]["unit"], panel["title"]
        elif panel["type"] != "table":
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["showLegend"]
            for target in panel["targets"]:
                assert target.get("legendFormat") or "rawSql" in target, panel["title"]


@every_board
def test_panels_fit_side_by_side_without_overlap(name):
    places = [panel["gridPos"] for panel in BOARDS[name]["panels"]]
    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for a, b in itertools.combinations(places, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart or above, (a, b)
    narrow = {"stat": 3, "timeseries": 8, "table": 8}  # at 1,280 pixels: about 160 and 420 wide
    for panel in panels(BOARDS[name]):
        assert panel["gridPos"]["w"] >= narrow.get(panel["type"], 6), panel["title"]
    assert len({panel["id"] for panel in BOARDS[name]["panels"]}) == len(BOARDS[name]["panels"])


def test_dashboards_lead_to_each_other():
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    for board in BOARDS.values():
        assert len(board["uid"]) <= 40
        links = [link for link in board["links"] if link["type"] == "dashboards"]
        assert [set(link["tags"]) <= set(board["tags"]) for link in links] == [True]
        assert links[0]["keepTime"]


def test_latency_panels_ask_for_exemplars_that_lead_to_traces():
    latency = [query for query in queries() if query.target.get("exemplar")]
    assert {query.panel["title"] for query in latency} >= {
        "Time to first token",
        "Time between outputs",
        "Whole request",
    }
    assert all(query.target["range"] for query in latency)
    for query in latency:
        [histogram] = re.findall(r"(\w+)_bucket\{", query.text)
        assert METRIC_BY_NAME[histogram].traced, query.name
    sources = data_sources()
    leads = sources["helios-prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert leads == [{"name": "trace_id", "datasourceUid": "helios-tempo"}]
    assert sources["helios-tempo"]["type"] == "tempo"


def test_a_fence_leads_to_the_plans_page():
    links = re.findall(r'"url": "(\$\{server:raw\}[^"]*)"', json.dumps([BOARDS["plans"], BOARDS["exploration"]]))
    assert len(links) == 3
    plan = "${server:raw}/dashboard/plan/${__data.fields.run_id:percentencode}/${__value.raw}"
    assert links.count(plan) == 2
    for query in queries():
        if plan in json.dumps(query.panel):
            assert {"run_id", "fence"} <= set(re.findall(r"\w+", query.text.partition("FROM")[0]))


def test_the_policys_changes_are_annotations_with_who_and_why():
    annotated = {name for name, board in BOARDS.items() if board.get("annotations", {}).get("list")}
    assert "decisions" in annotated
    for name in annotated:
        [annotation] = BOARDS[name]["annotations"]["list"]
        assert annotation["enable"]
        assert annotation["datasource"]["uid"] == "helios-postgres"
        assert {"v.actor", "v.note", "policy_applications"} <= set(
            re.findall(r"[\w.]+", annotation["target"]["rawSql"])
        )


def test_the_scrape_interval_is_known_to_grafana():
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    known = data_sources()["helios-prometheus"]["jsonData"]["timeInterval"]
    assert known == scraped["global"]["scrape_interval"]


def test_provisioning_points_at_what_the_stack_mounts():
    [provider] = yaml.safe_load((PROVISIONING / "dashboards" / "helios.yml").read_text(encoding="utf-8"))["providers"]
    stack = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounts = dict(volume.split(":")[:2] for volume in stack["grafana"]["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    for source in data_sources().values():
        assert source["url"].removeprefix("http://").partition(":")[0] in stack
        secret = re.search(r"__file\{/run/secrets/(\w+)\}", json.dumps(source))
        assert secret is None or secret[1] in stack["grafana"]["secrets"]
        assert not re.search(r'"password": "(?!\$__file)', json.dumps(source))


# --- what averages and percentages may be


@pytest.mark.parametrize("query", list(queries()), ids=lambda query: query.name)
def test_no_average_of_averages_and_no_sum_of_shares(query):
    wrong = wrong_sql(query.text) if query.sql else wrong_promql(query.text)
    assert [*wrong, *wrong_panel(query.panel)] == []


MEAN = "sum by (kind) (rate(a_seconds_sum{x}[5m])) / sum by (kind) (rate(a_seconds_count{x}[5m]))"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("avg(a_seconds_sum{x})", "avg of series"),
        ("avg by (kind) (rate(a_seconds_sum{x}[5m]))", "avg of series"),
        ("avg_over_time(flare_device_busy_ratio{x}[5m])", "avg_over_time"),
        ("sum (rate(a_seconds_sum{x}[5m]))", "not divided"),
        (MEAN.replace("_count{x}", "_count{y}"), "not divided"),
        (MEAN.replace("a_seconds_count", "b_seconds_count"), "not divided"),
        ("a_seconds_sum{x} / a_seconds_count{x}", "not divided"),
        ("sum (rate(a_total{x}[5m]) / rate(b_total{x}[5m]))", "sum of shares"),
        ("sum by (kind) (histogram_quantile(0.9, a_bucket{x}))", "sum of shares"),
        ("sum (flare_device_busy_ratio{x})", "sum of a ratio"),
    ],
)
def test_wrong_promql_is_noticed(text, words):
    assert words in " ".join(wrong_promql(text))


def test_right_promql_is_not():
    assert list(wrong_promql(MEAN)) == []
    assert list(wrong_promql('sum (rate(a_ratio_bucket{path="/x"}[5m])) / sum (rate(a_ratio_count{}[5m]))')) == []
    assert list(calls("sum by (le, k) (rate(a[5m])) / sum(b)", "sum")) == ["rate(a[5m])", "b"]


@pytest.mark.parametrize(
    "text", ["SELECT avg(device_ms_mean)", "SELECT sum(a / b)", "select SUM (cost_ratio)", "SELECT sum(percent)"]
)
def test_wrong_sql_is_noticed(text):
    assert len(list(wrong_sql(text))) == 1


def test_wrong_panels_are_noticed():
    assert list(wrong_panel({"options": {"legend": {"calcs": ["mean"]}}}))
    assert list(wrong_panel({"options": {"reduceOptions": {"calcs": ["sum"]}}}))
    stacked = {"unit": "percentunit", "custom": {"stacking": {"mode": "normal"}}}
    assert list(wrong_panel({"fieldConfig": {"defaults": stacked}}))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: promql.gauge("flare_no_such_gauge"),
        lambda: promql.gauge("flare_output_tokens_total"),
        lambda: promql.rate("flare_requests_running"),
        lambda: promql.rate("flare_requests_total", by=("kind",)),
        lambda: promql.rate("flare_requests_total", 'result="hit"'),
        lambda: promql.rate("flare_request_seconds"),
        lambda: promql.quantile(0.5, "flare_output_tokens_total"),
        lambda: promql.share_within(0.3, "flare_request_seconds"),
    ],
)
def test_a_series_that_the_server_lacks_is_refused(ask):
    with pytest.raises(promql.UnknownSeries):
        ask()


@every_board
def test_the_sdk_reads_and_writes_every_field(name):
    """A field that Grafana's schema does not know would be lost on the way, one of another type changed."""
    plugins.register_default_plugins()
    read = models.Dashboard.from_json(copy.deepcopy(BOARDS[name]))
    written = json.loads(JSONEncoder().encode(read))
    for board in (written, expected := copy.deepcopy(BOARDS[name])):
        for annotation in board.get("annotations", {}).get("list", ()):
            del annotation["target"]  # the schema has that of Grafana's own annotations only
    assert written == expected
    expected["panels"][1]["tittle"] = expected["panels"][1].pop("title")
    assert json.loads(JSONEncoder().encode(models.Dashboard.from_json(copy.deepcopy(expected)))) != expected
