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

NEWS = ["timeline-delta.data", "timeline-empty.children", "timeline-problem.children"]
Call = Callable[..., httpx.Response]


def news(
    call: Call,
    client: TestClient[Litestar],
    limit: object,
    policy: object,
    cursor: object,
    request: object = None,
) -> httpx.Response:
    return call(
        client,
        NEWS,
        {"timeline-ask.data": 1, "timeline-limit.value": limit},
        {"timeline-policy.data": policy, "timeline-request.data": request, "timeline-cursor.data": cursor},
    )


def delta(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["response"]["timeline-delta"]["data"]
    return found


def test_the_first_answer_holds_everything_and_the_next_only_what_is_open(
    client: TestClient[Litestar], call: Call
) -> None:
    first = delta(news(call, client, "200", None, None))
    assert first["replace"] is True
    assert len(first["rows"]) == 40
    second = delta(news(call, client, "200", None, first["cursor"]))
    assert second["replace"] is False
    assert [row["outcome"] for row in second["rows"]] == ["in flight"]


def test_with_nothing_new_the_answer_is_empty(client: TestClient[Litestar], call: Call) -> None:
    first = delta(news(call, client, "200", None, None))
    behind = {**first["cursor"], "fence": first["cursor"]["fence"] + 1}
    assert news(call, client, "200", None, behind).status_code == 204


def test_a_cursor_that_was_pruned_starts_over(client: TestClient[Litestar], call: Call) -> None:
    first = delta(news(call, client, "200", None, None))
    again = delta(news(call, client, "200", None, {**first["cursor"], "run_id": "gone"}))
    assert again["replace"] is True
    assert len(again["rows"]) == 40


def test_a_time_window_without_plans_is_not_an_empty_store(client: TestClient[Litestar], call: Call) -> None:
    first = delta(news(call, client, "10 min", None, None))
    assert (first["replace"], first["rows"], first["span_ms"], first["capped"]) == (True, [], 600_000, False)
    assert first["cursor"]["run_id"] is None
    assert news(call, client, "10 min", None, first["cursor"]).status_code == 204
    long_ago = {**first["cursor"], "until_ms": 0}
    assert delta(news(call, client, "10 min", None, long_ago))["rows"] == []


def test_the_timeline_can_be_limited_to_one_request(client: TestClient[Litestar], call: Call, store: sa.Engine) -> None:
    with store.connect() as connection:
        name = connection.execute(sa.select(plan_lanes.c.request_id).limit(1)).scalar_one()
        served = sa.select(sa.func.count()).select_from(plan_lanes).where(plan_lanes.c.request_id == name)
        wanted = connection.execute(served).scalar_one()
    assert len(delta(news(call, client, "200", None, None, name))["rows"]) == wanted < 40
    assert "No plan that served gone is stored" in news(call, client, "200", None, None, "gone").text


@pytest.mark.parametrize(
    ("limit", "policy", "cursor"),
    [
        ("1000000", None, None),
        (200, None, None),
        (None, None, None),
        (["200"], None, None),
        ("2 min", None, None),
        ("200", "1; drop table plans", None),
        ("200", True, None),
        ("200", -1, None),
        ("200", 2**63, None),
        ("200", None, "x"),
        ("200", None, {"run_id": "a\nb", "fence": 1, "until_ms": 0}),
        ("200", None, {"run_id": "a" * 201, "fence": 1, "until_ms": 0}),
        ("200", None, {"run_id": "a", "fence": 1.5, "until_ms": 0}),
        ("200", None, {"run_id": "a", "fence": 1, "until_ms": None}),
    ],
)
def test_values_that_the_timeline_never_offers_are_422(
    client: TestClient[Litestar], call: Call, limit: object, policy: object, cursor: object
) -> None:
    answer = news(call, client, limit, policy, cursor)
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
