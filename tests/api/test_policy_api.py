"""GET and PUT /api/policy, history and rollback over a real store, with a scripted engine."""

from __future__ import annotations

import shutil

import pytest
from fake_engine import Api, serving

from scheduler.policy import COEFFICIENT_BY_NAME
from service.control.policy import resolve_initial_policy
from service.ipc.errors import EngineUnavailable, PolicyRejected
from service.settings import Settings
from service.store.database import open_database


@pytest.fixture
def control_api(request, _sqlite_template, tmp_path):
    shutil.copy(_sqlite_template, tmp_path / "helios.db")
    store = open_database(f"sqlite:///{tmp_path / 'helios.db'}")
    resolve_initial_policy(store, Settings(data_dir=str(tmp_path), database=str(store.url), threads=1))
    with serving(store, tmp_path, mixed_prefill=getattr(request, "param", False)) as api:
        yield api
    store.dispose()


def put(api: Api, body: object, version: str | None = '"1"', **headers: str):
    headers = headers if version is None else {"If-Match": version, **headers}
    return api.http.put("/api/policy", json=body, headers=headers)


def problem(answer, status: int, code: str) -> dict:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].split(";")[0] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["code"]) == (status, code), body
    assert "Traceback" not in answer.text
    return body


def unchanged(api: Api) -> None:
    assert api.http.get("/api/policy").json()["version"] == 1
    assert api.engine.policies == []


def test_the_policy_in_force_is_shown_with_its_etag(control_api):
    answer = control_api.http.get("/api/policy")
    body = answer.json()
    assert answer.headers["etag"] == '"1"'
    assert set(body) >= {"version", "preset", "coefficients", "created_at", "applied_at", "actor", "note"}
    assert list(body["coefficients"]) == list(COEFFICIENT_BY_NAME)
    assert (body["preset"], body["actor"]) == ("balanced", "default")
    assert body["created_at"].endswith("Z")


def test_a_change_is_a_new_version_that_the_engine_has(control_api):
    answer = put(control_api, {"coefficients": {"token_fairness": 20}, "actor": "kim", "note": "try"})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["version"], body["coefficients"]["token_fairness"], body["actor"], body["note"]) == (
        2,
        20,
        "kim",
        "try",
    )
    assert body["applied_at"] is not None
    assert answer.headers["etag"] == '"2"'
    assert [version for version, _ in control_api.engine.policies] == [2]
    assert control_api.engine.policies[0][1]["token_fairness"] == 20
    assert control_api.http.get("/api/policy").json() == body


def test_the_preset_counts_first_and_then_the_coefficients(control_api):
    body = put(control_api, {"preset": "throughput", "coefficients": {"decode_age_price": 0.5}}).json()
    assert body["coefficients"]["delivery_fairness"] == 0
    assert body["coefficients"]["decode_age_price"] == 0.5


@pytest.mark.parametrize(
    ("preset", "changed"),
    [("budget:512", {"token_budget": 512}), ("interactive", {"prompt_wait_price": 1000.0, "decode_cadence": "on"})],
)
def test_a_preset_is_shown_by_its_name(control_api, preset, changed):
    body = put(control_api, {"preset": preset}).json()
    assert (body["preset"], body["version"]) == (preset, 2)
    assert body["coefficients"].items() >= changed.items()
    assert control_api.http.get("/api/policy").json() == body


@pytest.mark.parametrize("control_api", [False, True], ids=["without-mixed", "mixed"], indirect=True)
@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"preset": "interactive"}, "(interactive)"),
        ({"preset": "budget:512"}, "(budget:512)"),
        ({"coefficients": {"decode_cadence": "on", "token_fairness": 3}}, "(decode_cadence=on)"),
        ({"coefficients": {"token_budget": 9, "token_fairness": 3}}, "(token_budget=9)"),
        ({"preset": "throughput"}, None),
        ({"coefficients": {"prompt_wait_price": 5}}, None),
    ],
)
def test_a_policy_that_wants_mixed_graphs_is_warned_of_where_there_are_none(control_api, request, change, name):
    mixed = request.node.callspec.params["control_api"]
    told = control_api.http.get("/api/policy").json()["warnings"] + control_api.http.get("/health").json()["warnings"]
    assert told == []
    body = put(control_api, change).json()
    ready = control_api.http.get("/health/ready")
    assert (ready.status_code, ready.json()["warnings"]) == (200, body["warnings"])
    assert control_api.http.get("/api/policy").json() == body
    assert len(body["warnings"]) == (name is not None and not mixed)
    for line in body["warnings"]:
        assert name in line
        assert "--mixed-prefill --mixed-prompt-rows 4" in line
    back = control_api.http.post("/api/policy/rollback", headers={"If-Match": '"2"'}).json()
    assert (back["warnings"], control_api.http.get("/health/ready").json()["warnings"]) == ([], [])


def test_a_preset_that_there_is_not_is_answered_with_the_forms(control_api):
    answer = put(control_api, {"preset": "budget:0"})
    assert answer.status_code == 422
    assert "budget:N with N from 1 to 1,048,576 tokens a step" in answer.json()["problems"]["preset"]


@pytest.mark.parametrize("body", [{}, {"coefficients": {}}, {"coefficients": {"token_fairness": 16}}, {"note": "x"}])
def test_unchanged_values_make_no_version(control_api, body):
    assert put(control_api, body).json()["version"] == 1
    unchanged(control_api)


def test_a_change_without_if_match_is_428(control_api):
    assert "If-Match" in problem(put(control_api, {}, version=None), 428, "if_match_required")["detail"]
    problem(control_api.http.post("/api/policy/rollback"), 428, "if_match_required")
    unchanged(control_api)


@pytest.mark.parametrize(
    "header", ["1", "*", 'W/"1"', '"1", "2"', '"x"', '""', '"-1"', '"99999999999999999999"', '"001"', '"01"']
)
def test_an_if_match_that_is_not_one_version_is_400(control_api, header):
    problem(put(control_api, {"coefficients": {"token_fairness": 1}}, version=header), 400, "invalid_request")
    unchanged(control_api)


def test_two_if_match_headers_are_400_even_when_they_agree(control_api):
    for second in ('"1"', '"2"'):
        headers = [("If-Match", '"1"'), ("If-Match", second)]
        answer = control_api.http.put("/api/policy", json={"coefficients": {"token_fairness": 1}}, headers=headers)
        problem(answer, 400, "invalid_request")
        problem(control_api.http.post("/api/policy/rollback", headers=headers), 400, "invalid_request")
    unchanged(control_api)


def test_a_policy_body_above_64_kib_is_413(control_api):
    large = {"coefficients": {f"x{n}": 1 for n in range(10_000)}}
    assert "64 KiB" in problem(put(control_api, large), 413, "body_too_large")["detail"]
    for method, path in (("PUT", "/api/policy"), ("POST", "/api/policy/rollback")):
        unannounced = iter([b'{"note": "', b"x" * 70_000, b'"}'])
        answer = control_api.http.request(method, path, content=unannounced, headers={"If-Match": '"1"'})
        problem(answer, 413, "body_too_large")
    unchanged(control_api)


@pytest.mark.parametrize("nest", [lambda names: {"coefficients": names}, lambda names: names], ids=["inner", "outer"])
def test_many_unknown_names_make_a_short_answer(control_api, nest):
    answer = put(control_api, nest({f"x{n}": 1 for n in range(5_000)}))
    assert answer.status_code == 422
    assert len(answer.json()["problems"]) <= 20
    assert "4,992 more" in answer.json()["problems"]["…"]
    assert len(answer.content) < 3_000
    unchanged(control_api)


@pytest.mark.parametrize("name", ["newcomer_memory", "token_fairness", "estimate_ttl_ns"])
@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 900 + "]" * 900], ids=["digits", "nested"])
def test_a_huge_value_is_refused_like_any_other(control_api, name, value):
    content = f'{{"coefficients": {{"{name}": {value}}}}}'
    answer = control_api.http.put("/api/policy", content=content, headers={"If-Match": '"1"'})
    assert answer.status_code in (400, 422), answer.text
    unchanged(control_api)


def test_a_stale_version_is_409_with_the_difference(control_api):
    put(control_api, {"coefficients": {"token_fairness": 20}, "actor": "kim"})
    body = problem(put(control_api, {"coefficients": {"token_fairness": 5}}), 409, "stale_policy")
    assert body["current_version"] == 2
    assert body["difference"]["token_fairness"] == {"yours": 5, "theirs": 20}
    assert control_api.http.get("/api/policy").json()["coefficients"]["token_fairness"] == 20


@pytest.mark.parametrize(
    "body",
    [
        {"coefficients": {"token_fairness": -1}},
        {"coefficients": {"token_fairness": "5"}},
        {"coefficients": {"token_fairness": True}},
        {"coefficients": {"token_fairness": None}},
        {"coefficients": {"token_fairness": 10**400}},
        {"coefficients": {"adaptation_ms": 0}},
        {"coefficients": {"estimate_ttl_ns": 2**63}},
        {"coefficients": {"newcomer_memory": "x"}},
        {"coefficients": {"token_fairness": 20, "no_such": 1}},
        {"coefficients": {"token_fairness": 20, "terminal_value": 20, "delivery_fairness": -5}},
        {"preset": "fast"},
        {"preset": 1},
        {"coefficients": []},
        {"coefficient": {"token_fairness": 1}},
        {"actor": 5},
        {"note": "x" * 10_000},
        {"actor": "a\u0000b"},
    ],
)
def test_a_bad_value_is_422_and_nothing_changes(control_api, body):
    answer = put(control_api, body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["problems"]
    unchanged(control_api)


@pytest.mark.parametrize(("name", "longest"), [("actor", 100), ("note", 500)])
def test_texts_are_kept_up_to_their_limit_and_the_error_names_it(control_api, name, longest):
    change = {"coefficients": {"token_fairness": 20}}
    problems = problem(put(control_api, {**change, name: "x" * (longest + 1)}), 422, "invalid_value")["problems"]
    assert f"at most {longest} characters" in problems[name]
    unchanged(control_api)
    assert put(control_api, {**change, name: "x" * longest}).json()[name] == "x" * longest


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"coefficients": {"token_fairness": NaN}}', b'{"a": 1e999}'])
def test_a_body_that_is_no_json_object_is_400(control_api, content):
    answer = control_api.http.put("/api/policy", content=content, headers={"If-Match": '"1"'})
    problem(answer, 400, "invalid_request")
    unchanged(control_api)


def test_an_engine_that_cannot_take_it_is_503_and_nothing_changes(control_api):
    control_api.engine.policy_error = EngineUnavailable("the engine is down; try again in a moment")
    answer = put(control_api, {"coefficients": {"token_fairness": 20}})
    problem(answer, 503, "engine_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    unchanged(control_api)


def test_an_engine_that_refuses_it_is_422_and_nothing_changes(control_api):
    control_api.engine.policy_error = PolicyRejected("no")
    problem(put(control_api, {"coefficients": {"token_fairness": 20}}), 422, "policy_rejected")
    unchanged(control_api)


def test_history_is_newest_first_and_limited(control_api):
    put(control_api, {"coefficients": {"token_fairness": 20}})
    items = control_api.http.get("/api/policy/history").json()["items"]
    assert [item["version"] for item in items] == [2, 1]
    assert len(control_api.http.get("/api/policy/history?limit=1").json()["items"]) == 1
    for bad in ("0", "-1", "x", "1001", "1.5"):
        problem(control_api.http.get(f"/api/policy/history?limit={bad}"), 400, "invalid_request")


def test_rollback_makes_a_new_version_with_the_old_values(control_api):
    put(control_api, {"coefficients": {"token_fairness": 20}})
    answer = control_api.http.post("/api/policy/rollback", headers={"If-Match": '"2"'}, json={"actor": "kim"})
    body = answer.json()
    assert (body["version"], body["coefficients"]["token_fairness"], body["actor"]) == (3, 16, "kim")
    again = control_api.http.post("/api/policy/rollback", headers={"If-Match": '"3"'}, json={"to_version": 2}).json()
    assert (again["version"], again["coefficients"]["token_fairness"]) == (4, 20)


def test_rollback_to_a_version_that_never_was_is_422(control_api):
    for target in (99, "1", 0, True, 2**70):
        answer = control_api.http.post("/api/policy/rollback", headers={"If-Match": '"1"'}, json={"to_version": target})
        assert answer.status_code == 422, answer.text
    unchanged(control_api)


def test_pages_of_other_origins_change_nothing(control_api):
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": control_api.url.replace("127.0.0.1", "localhost")},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example:9", "Host": "evil.example:9"},
        {"Origin": "http://["},
    ):
        problem(put(control_api, {"coefficients": {"token_fairness": 20}}, **headers), 403, "cross_origin")
    unchanged(control_api)
    assert put(control_api, {"coefficients": {"token_fairness": 20}}, Origin=control_api.url).status_code == 200


def test_a_page_of_another_origin_cannot_start_a_chat(control_api):
    answer = control_api.http.post("/v1/chat/completions", json={}, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "cross_origin"
