"""GET /api/plans, /api/requests and /api/runs over a filled store; health, metrics and schema."""

from __future__ import annotations

import datetime as dt
import json
import pathlib
import shutil
import socket
import time

import pytest
from factories import fill_store
from fake_engine import READY, Api, raw_request, serving

from service.api import context
from service.api.generation_options import USED
from service.control.policy import resolve_initial_policy
from service.settings import Settings
from service.store.database import open_database
from service.store.tables import plan_lanes, plans, requests
from service.telemetry.shared import MetricsWriter


@pytest.fixture(scope="module")
def trace_api(_sqlite_template, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    shutil.copy(_sqlite_template, folder / "helios.db")
    store = open_database(f"sqlite:///{folder / 'helios.db'}")
    fill_store(store)
    with serving(store, folder) as api:
        yield api
    store.dispose()


def strict(answer) -> dict:
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text, parse_constant=pytest.fail)


def test_plans_have_the_sql_columns_and_come_newest_first(trace_api):
    items = strict(trace_api.http.get("/api/plans"))["items"]
    assert items
    assert set(items[0]) == set(plans.c.keys())
    times = [item["committed_at"] for item in items]
    assert times == sorted(times, reverse=True)
    assert dt.datetime.fromisoformat(times[0]).tzinfo is not None


@pytest.mark.parametrize("path", ["plans", "requests", "runs", "catalog", "ledgers"])
def test_a_listing_that_takes_too_long_is_stopped_and_says_what_to_ask(trace_api, monkeypatch, path):
    assert trace_api.http.get(f"/api/{path}").status_code == 200
    monkeypatch.setattr(context, "READ_LIMIT_S", 0.0)
    answer = trace_api.http.get(f"/api/{path}")
    assert answer.status_code == 503
    assert "ask for a shorter span of time or fewer rows" in answer.text
    assert "retry-after" in answer.headers


def test_pages_follow_each_other_without_gap_or_repetition(trace_api):
    whole = strict(trace_api.http.get("/api/plans?limit=1000"))["items"]
    seen, cursor = [], None
    for _ in range(len(whole)):
        page = strict(trace_api.http.get("/api/plans", params={"limit": 7, **({"cursor": cursor} if cursor else {})}))
        seen += page["items"]
        cursor = page["next"]
        if cursor is None or len(seen) >= 50:
            break
    assert seen == whole[: len(seen)]


def test_filters_reach_the_query(trace_api):
    first = strict(trace_api.http.get("/api/plans"))["items"][0]
    for name, key in (("kind", "kind"), ("reason", "reason"), ("run", "run_id"), ("policy_version", "policy_version")):
        items = strict(trace_api.http.get("/api/plans", params={name: first[key]}))["items"]
        assert items
        assert {item[key] for item in items} == {first[key]}
    items = strict(trace_api.http.get("/api/plans", params={"since": first["committed_at"]}))["items"]
    assert {item["committed_at"] for item in items} == {first["committed_at"]}


@pytest.mark.parametrize(
    "query",
    [
        "kind=x", "reason=x", "shape=x", "since=yesterday", "until=5", "limit=0", "limit=1001", "limit=x",
        "cursor=x", "policy_version=x", "policy_version=-1", "unknown=1", "kind=decode&kind=decode", "run=%00",
    ],
)  # fmt: skip
def test_filters_that_cannot_be_used_are_400_and_named(trace_api, query):
    answer = trace_api.http.get(f"/api/plans?{query}")
    assert answer.status_code == 400
    body = answer.json()
    assert body["param"] == query.split("=")[0]
    assert body["detail"]


def test_one_plan_with_its_lanes_and_runners_up(trace_api):
    first = strict(trace_api.http.get("/api/plans"))["items"][0]
    body = strict(trace_api.http.get(f"/api/plans/{first['run_id']}/{first['fence']}"))
    assert set(body) == {"plan", "lanes", "alternatives", "episode"}
    assert body["plan"] == first
    assert set(body["lanes"][0]) == set(plan_lanes.c.keys())


@pytest.mark.parametrize("path", ["/api/plans/nobody/1", "/api/requests/nobody/1", "/api/plans/%00/1", "/api/nothing"])
def test_what_is_not_there_is_404(trace_api, path):
    answer = trace_api.http.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"].split(";")[0] == "application/problem+json"


@pytest.mark.parametrize("fence", ["x", "-1", "1.5", "99999999999999999999"])
def test_a_fence_that_is_no_number_is_400(trace_api, fence):
    assert trace_api.http.get(f"/api/plans/run/{fence}").status_code == 400


def test_requests_and_runs(trace_api):
    items = strict(trace_api.http.get("/api/requests"))["items"]
    assert set(items[0]) == set(requests.c.keys())
    one = strict(trace_api.http.get(f"/api/requests/{items[0]['run_id']}/{items[0]['request_id']}"))
    assert one == items[0]
    runs = strict(trace_api.http.get("/api/runs"))
    assert runs["items"]
    assert runs["next"] is None


def test_readiness_gives_its_reasons(api: Api):
    assert api.http.get("/health/live").json() == {"status": "live"}
    body = strict(api.http.get("/health/ready"))
    assert (body["status"], body["reasons"], body["run_id"]) == ("ready", [], READY.run_id)
    for state, word in (("starting", "starting"), ("down", "down"), ("stopping", "stopping")):
        api.engine.state = state
        answer = api.http.get("/health/ready")
        assert answer.status_code == 503
        assert word in answer.json()["reasons"][0]
        asked_elsewhere = api.http.get("/health")
        assert (asked_elsewhere.status_code, asked_elsewhere.json()) == (503, answer.json())
    api.engine.state = "ready"
    assert strict(api.http.get("/health")) == body


def test_an_engine_that_is_connected_but_does_not_move_makes_the_server_unready(sqlite_url, tmp_path):
    store = open_database(sqlite_url)
    with serving(store, tmp_path) as api, MetricsWriter(tmp_path / "run" / "engine.metrics") as metrics:
        metrics.heartbeat(time.monotonic_ns())
        assert strict(api.http.get("/health/ready"))["reasons"] == []
        metrics.heartbeat(time.monotonic_ns() - 6_000_000_000)
        answer = api.http.get("/health/ready")
        assert answer.status_code == 503
        assert answer.json()["reasons"] == ["the engine does not answer"]
        metrics.heartbeat(time.monotonic_ns())
        assert api.http.get("/health/ready").status_code == 200
    store.dispose()


def test_a_trace_that_loses_records_is_a_warning_and_keeps_the_server_ready(sqlite_url, tmp_path):
    store = open_database(sqlite_url)
    with serving(store, tmp_path) as api, MetricsWriter(tmp_path / "run" / "engine.metrics") as metrics:
        assert strict(api.http.get("/health/ready"))["warnings"] == []
        metrics.gauge("flare_journal_trouble", "disk_full").set(1)
        body = strict(api.http.get("/health/ready"))
        assert (body["status"], body["reasons"]) == ("ready", [])
        assert body["warnings"] == ["the trace is losing records: disk full"]
    store.dispose()


def test_a_recorder_that_cannot_deliver_or_does_not_move_is_a_warning(sqlite_url, tmp_path):
    store = open_database(sqlite_url)
    with serving(store, tmp_path) as api, MetricsWriter(tmp_path / "run" / "recorder.metrics") as metrics:
        lag = metrics.gauge("flare_trace_lag_seconds", "sql")
        for seconds, words in ((4.9, []), (42.0, ["the trace store is 42 s behind: its records wait in the journal"])):
            metrics.heartbeat(time.monotonic_ns())
            lag.set(seconds)
            body = strict(api.http.get("/health/ready"))
            assert (body["status"], body["warnings"]) == ("ready", words)
        metrics.heartbeat(time.monotonic_ns() - 6_000_000_000)
        assert "the recorder does not answer" in api.http.get("/health/ready").json()["warnings"][0]
    store.dispose()


def test_a_database_file_that_was_removed_is_a_warning_and_a_policy_change_is_refused(sqlite_url, tmp_path):
    path = pathlib.Path(sqlite_url.removeprefix("sqlite:///"))
    store = open_database(sqlite_url)
    resolve_initial_policy(store, Settings(data_dir=str(tmp_path), database=sqlite_url, threads=1))
    with serving(store, tmp_path) as api:
        body = {"coefficients": {"token_fairness": 20}}
        assert api.http.put("/api/policy", json=body, headers={"If-Match": '"1"'}).json()["version"] == 2
        path.unlink()
        answer = api.http.get("/health/ready")
        assert (answer.status_code, answer.json()["reasons"]) == (200, [])
        assert answer.json()["warnings"] == ["the database file was removed or replaced; restart the server"]
        body = {"coefficients": {"token_fairness": 30}}
        answer = api.http.put("/api/policy", json=body, headers={"If-Match": '"2"'})
        assert answer.status_code == 503
        assert "removed or replaced; restart the server" in answer.json()["detail"]
        assert api.http.get("/api/policy").json()["version"] == 2
        assert api.chat().status_code == 200
        store.dispose()
        assert api.http.get("/api/plans").status_code == 503
        assert not path.exists()
    store.dispose()


def test_a_store_that_is_unreachable_is_a_warning_and_lists_are_503(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        store = open_database(f"postgresql://nobody@127.0.0.1:{taken.getsockname()[1]}/helios")
        with serving(store, tmp_path) as api:
            answer = api.http.get("/health/ready")
            assert (answer.status_code, answer.json()["reasons"]) == (200, [])
            assert any("the trace store is unreachable" in line for line in answer.json()["warnings"])
            answer = api.http.get("/api/plans")
            assert answer.status_code == 503
            assert "retry-after" in answer.headers
            assert api.chat().status_code == 200
        store.dispose()


def test_the_schema_lists_every_route(api: Api):
    paths = strict(api.http.get("/schema"))["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/api/plans", "/api/policy", "/health/ready"} <= set(paths)
    assert strict(api.http.get("/schema/openapi.json"))["paths"] == paths


def test_the_schema_names_exactly_the_fields_that_bodies_may_use(api: Api):
    paths = strict(api.http.get("/schema"))["paths"]

    def fields(path: str) -> set[str]:
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return set(body["properties"])

    assert fields("/v1/chat/completions") == USED | {"messages", "max_completion_tokens", "top_logprobs"}
    assert fields("/v1/completions") == USED | {"prompt", "echo", "best_of"}
    assert fields("/v1/tokenize") == {"model", "prompt", "messages"}
    assert "requestBody" in paths["/api/policy"]["put"]


def test_the_root_leads_to_the_dashboard(api: Api):
    answer = api.http.get("/")
    assert answer.is_redirect
    assert answer.headers["location"] == "/dashboard/"


def test_a_websocket_is_refused_cleanly(api: Api):
    head = (
        "GET /v1/models HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert raw_request(api.url, head).split(b"\r\n")[0].split()[1] in (b"403", b"404")
    assert api.http.get("/health/live").status_code == 200


def test_a_policy_that_the_store_cannot_confirm_is_a_warning(api: Api):
    context = api.app.state.context
    context.policy_trouble = "the policy in force cannot be read from the store"
    answer = api.http.get("/health/ready")
    context.policy_trouble = ""
    assert (answer.status_code, answer.json()["reasons"]) == (200, [])
    assert "the policy in force cannot be read from the store" in answer.json()["warnings"]
