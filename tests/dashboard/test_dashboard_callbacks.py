"""Callbacks judge what is posted to them: whoever can reach the port can post anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from litestar import Litestar
from litestar.testing import TestClient

from dashboard.pages.policy.values import show
from scheduler.policy import COEFFICIENTS, PolicyConfig
from service.store.tables import plan_lanes, policy_versions

VIEW = [
    "timeline-graph.figure",
    "timeline-grid.rowData",
    "timeline-shown.children",
    "timeline-legend.children",
    "timeline-events.children",
    "timeline-filter-note.children",
    "timeline-spans.children",
    "timeline-table-title.children",
    "timeline-state.data",
    "timeline-body.hidden",
    "timeline-empty.children",
    "timeline-empty.hidden",
    "timeline-problem.children",
]
Call = Callable[..., httpx.Response]


def view(call: Call, client: TestClient[Litestar], query: object = "", state: object = None) -> httpx.Response:
    return call(client, VIEW, {"timeline-query.data": query, "timeline-ask.data": 1}, {"timeline-state.data": state})


def shown(answer: httpx.Response, component: str, prop: str) -> Any:
    return answer.json()["response"][component][prop]


def test_the_first_answer_holds_the_newest_plans_and_without_news_the_next_is_empty(
    client: TestClient[Litestar], call: Call
) -> None:
    first = view(call, client)
    state = shown(first, "timeline-state", "data")
    assert len(shown(first, "timeline-grid", "rowData")) == 40
    assert state["follows"] is True
    assert view(call, client, "", state).status_code == 204
    assert view(call, client, "", {**state, "mark": "of before"}).status_code == 200
    assert view(call, client, "?by=reason", state).status_code == 200


def test_a_moving_span_without_plans_says_so_and_follows(client: TestClient[Litestar], call: Call) -> None:
    first = view(call, client, "?last=15m")
    state = shown(first, "timeline-state", "data")
    assert "No plan was chosen" in json.dumps(shown(first, "timeline-shown", "children"))
    assert view(call, client, "?last=15m", state).status_code == 204
    long_ago = {**state, "asked_ms": state["asked_ms"] - 60_000}
    assert view(call, client, "?last=15m", long_ago).status_code == 200
    fixed = shown(
        view(call, client, "?since=2026-03-01T12:00:00Z&until=2026-03-01T12:00:01Z"), "timeline-state", "data"
    )
    assert fixed["follows"] is False
    assert fixed["until_ms"] - fixed["since_ms"] == 1000


def test_the_timeline_can_be_limited_to_one_request(client: TestClient[Litestar], call: Call, store: sa.Engine) -> None:
    with store.connect() as connection:
        name = connection.execute(sa.select(plan_lanes.c.request_id).limit(1)).scalar_one()
        served = sa.select(sa.func.count()).select_from(plan_lanes).where(plan_lanes.c.request_id == name)
        wanted = connection.execute(served).scalar_one()
    assert len(shown(view(call, client, f"?request={name}"), "timeline-grid", "rowData")) == wanted < 40
    assert "No plan that served gone was chosen" in view(call, client, "?request=gone").text


@pytest.mark.parametrize(
    "query",
    [
        "?last=1000y",
        "?since=x&until=y",
        "?kind=%00",
        "?policy=1%3B+drop+table+plans",
        "?by=colour",
        "?request=" + "a" * 300,
    ],
)  # fmt: skip
def test_what_cannot_be_read_of_an_address_is_left_out(client: TestClient[Litestar], call: Call, query: str) -> None:
    assert view(call, client, query).status_code == 200


@pytest.mark.parametrize(
    ("query", "state"),
    [
        ("?a=" + "b" * 2000, None),
        (5, None),
        (["?last=1h"], None),
        ("a\nb", None),
        ("", "x"),
        ("", {"query": "", "mark": "", "asked_ms": None}),
        ("", {"query": "", "mark": "a\nb", "asked_ms": 0}),
        ("", {"query": "", "mark": 5, "asked_ms": 0}),
        ("", {"query": {}, "mark": "", "asked_ms": 0}),
    ],
)
def test_values_that_the_timeline_never_sends_are_422(
    client: TestClient[Litestar], call: Call, query: object, state: object
) -> None:
    answer = view(call, client, query, state)
    assert answer.status_code == 422
    assert answer.json()["detail"]


def entry(name: str, value: object) -> dict[str, object]:
    return {"id": {"type": "coefficient", "name": name}, "property": "value", "value": value}


def apply_body(callback: str, *, loaded: object, entries: list[dict[str, object]], **other: object) -> str:
    ids = [{**e, "property": "id", "value": e["id"]} for e in entries]
    state = [
        {"id": "policy-loaded", "property": "data", "value": loaded},
        {"id": "policy-preset", "property": "value", "value": other.get("preset")},
        entries,
        ids,
        {"id": "policy-actor", "property": "value", "value": other.get("actor", "olga")},
        {"id": "policy-note", "property": "value", "value": other.get("note", "")},
    ]
    outputs = [
        {"id": part.rpartition(".")[0], "property": part.rpartition(".")[2]}
        for part in callback.strip(".").split("...")
    ]
    inputs = [{"id": "policy-apply", "property": "n_clicks", "value": 1}]
    return json.dumps(
        {
            "output": callback,
            "outputs": outputs,
            "inputs": inputs,
            "state": state,
            "changedPropIds": ["policy-apply.n_clicks"],
        }
    )


APPLY = (
    "..policy-result.children...policy-stale.children...policy-loaded.data...policy-version.children"
    "...policy-history.rowData...policy-actor.error.."
)
IN_FORCE = PolicyConfig.balanced().merged({"decode_age_price": 0.4}).as_dict()


def entries(**changes: object) -> list[dict[str, object]]:
    return [entry(c.name, changes.get(c.name, show(IN_FORCE[c.name]))) for c in COEFFICIENTS]


def post_apply(client: TestClient[Litestar], body: str) -> httpx.Response:
    return client.post("/dashboard/_dash-update-component", content=body, headers={"content-type": "application/json"})


def version_count(store: sa.Engine) -> int:
    with store.connect() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(policy_versions)).scalar_one()


def test_a_posted_change_is_applied_like_any_other(client: TestClient[Litestar], store: sa.Engine) -> None:
    loaded = {"version": 2, "values": IN_FORCE}
    answer = post_apply(client, apply_body(APPLY, loaded=loaded, entries=entries(decode_age_price="0.7")))
    assert answer.status_code == 200
    assert "Version 3 applied" in answer.text
    assert version_count(store) == 3


def test_unchanged_values_make_no_version(client: TestClient[Litestar], store: sa.Engine) -> None:
    answer = post_apply(client, apply_body(APPLY, loaded={"version": 2, "values": IN_FORCE}, entries=entries()))
    assert "has these values already" in answer.text
    assert version_count(store) == 2


def test_a_posted_bad_value_comes_back_with_the_policys_own_words(
    client: TestClient[Litestar], store: sa.Engine
) -> None:
    loaded = {"version": 2, "values": IN_FORCE}
    answer = post_apply(client, apply_body(APPLY, loaded=loaded, entries=entries(decode_age_price="nan")))
    assert "must be a finite number, 0 or more" in answer.text
    assert version_count(store) == 2


@pytest.mark.parametrize(
    ("loaded", "changed", "other"),
    [
        ("x", {}, {}),
        ({"version": True, "values": IN_FORCE}, {}, {}),
        ({"version": 2, "values": {"no_such": 1}}, {}, {}),
        ({"version": 2, "values": {**IN_FORCE, "terminal_value": -1}}, {}, {}),
        ({"version": 2, "values": IN_FORCE}, {"terminal_value": 3}, {}),
        ({"version": 2, "values": IN_FORCE}, {"terminal_value": "1" * 65}, {}),
        ({"version": 2, "values": IN_FORCE}, {}, {"preset": "fastest"}),
        ({"version": 2, "values": IN_FORCE}, {}, {"actor": "a" * 101}),
        ({"version": 2, "values": IN_FORCE}, {}, {"note": "two\nlines"}),
        ({"version": 2, "values": IN_FORCE}, {}, {"actor": {"a": 1}}),
    ],
)
def test_values_that_the_form_never_sends_are_422(
    client: TestClient[Litestar], store: sa.Engine, loaded: object, changed: dict[str, object], other: dict[str, object]
) -> None:
    answer = post_apply(client, apply_body(APPLY, loaded=loaded, entries=entries(**changed), **other))
    assert answer.status_code == 422
    assert version_count(store) == 2


def test_a_form_with_a_field_missing_or_doubled_is_422(client: TestClient[Litestar], store: sa.Engine) -> None:
    loaded = {"version": 2, "values": IN_FORCE}
    for fields in (entries()[:-1], [*entries()[:-1], entries()[0]], [*entries(), entry("no_such", "1")]):
        assert post_apply(client, apply_body(APPLY, loaded=loaded, entries=fields)).status_code == 422
    assert version_count(store) == 2


def test_going_back_without_a_name_says_so_and_changes_nothing(client: TestClient[Litestar], store: sa.Engine) -> None:
    callbacks = [entry["output"] for entry in client.get("/dashboard/_dash-dependencies").json()]
    (output,) = [name for name in callbacks if "policy-rollback-actor.error" in name]
    outputs = [
        {"id": part.rpartition(".")[0], "property": part.rpartition(".")[2]} for part in output.strip(".").split("...")
    ]
    values = {"policy-rollback-target.data": 1, "policy-loaded.data": {"version": 2, "values": IN_FORCE}}
    values |= {"policy-rollback-actor.value": "  ", "policy-rollback-note.value": None}
    state = [{"id": n.rpartition(".")[0], "property": n.rpartition(".")[2], "value": v} for n, v in values.items()]
    inputs = [{"id": "policy-rollback-confirm", "property": "n_clicks", "value": 1}]
    changed = ["policy-rollback-confirm.n_clicks"]
    body = {"output": output, "outputs": outputs, "inputs": inputs, "state": state, "changedPropIds": changed}
    answer = post_apply(client, json.dumps(body))
    assert answer.status_code == 200
    assert "Say who you are" in answer.text
    assert version_count(store) == 2
