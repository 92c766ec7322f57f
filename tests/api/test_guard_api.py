"""GET, POST and DELETE /api/policy/guard over a real store, with a scripted engine."""

from __future__ import annotations

import shutil

import pytest
import sqlalchemy as sa
from fake_engine import serving
from waiting import wait_until

from service.control.policy import resolve_initial_policy
from service.settings import Settings
from service.store.database import open_database
from service.store.engines import read_transaction
from service.store.tables import policy_attempts, policy_guards

PATH = "/api/policy/guard"
ABSOLUTE = {"first_token_p99": {"absolute": 100, "samples": 5}, "inter_token_p99": None, "throughput": None}


@pytest.fixture(scope="module")
def guard_api(_sqlite_template, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guards")
    shutil.copy(_sqlite_template, folder / "helios.db")
    store = open_database(f"sqlite:///{folder / 'helios.db'}")
    with serving(store, folder) as server:
        yield server, store
    store.dispose()


@pytest.fixture
def api(guard_api):
    server, store = guard_api
    with store.connect().execution_options(helios_writes=True) as connection, connection.begin():
        for table in (policy_guards, policy_attempts):
            connection.execute(table.delete())
    resolve_initial_policy(store, Settings(data_dir="/nowhere", database="", threads=1))
    server.engine.reset()
    server.store = store
    server.version = server.http.get("/api/policy").json()["version"]
    return server


def opened(api, body=None, version=None, **more):
    current = api.http.get("/api/policy").json()
    change = {"token_fairness": current["coefficients"]["token_fairness"] + 1}
    body = {"coefficients": change, "limits": ABSOLUTE, "minutes": 5, "actor": "kim", **(body or {}), **more}
    headers = {} if version == "" else {"If-Match": version or f'"{current["version"]}"'}
    return api.http.post(PATH, json=body, headers=headers)


def problem(answer, status, code):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].split(";")[0] == "application/problem+json"
    assert answer.json()["code"] == code
    return answer.json()


def attempts(api):
    with read_transaction(api.store) as connection:
        return list(connection.execute(sa.select(policy_attempts.c.outcome).order_by(policy_attempts.c.id)).scalars())


def test_a_guard_is_opened_with_its_change_shown_and_ended(api):
    answer = opened(api, note="try")
    assert answer.status_code == 201, answer.text
    guard = answer.json()
    assert answer.headers["etag"] == f'"{guard["version"]}"'
    assert (guard["version"], guard["parent_version"]) == (api.version + 1, api.version)
    assert (guard["state"], guard["minutes"], guard["actor"]) == ("watching", 5, "kim")
    assert guard["limits"]["first_token_p99"] == {"ratio": None, "absolute": 100, "samples": 5}
    assert guard["opened_at"].endswith("Z")
    columns = {column.name for column in policy_guards.columns}
    assert set(guard) == columns - {"watcher", "lease_ends_at"}
    shown = api.http.get(PATH).json()
    assert shown["watching"]["version"] == guard["version"]
    assert [item["version"] for item in shown["items"]] == [guard["version"]]
    assert api.http.get("/api/policy").json()["note"] == "try"
    ended = api.http.delete(PATH, headers={"If-Match": f'"{guard["version"]}"'}, params={"actor": "lee"})
    assert (ended.status_code, ended.json()["state"]) == (200, "ended")
    assert ended.json()["reason"] == "ended by lee, who kept the version"
    assert api.http.get(PATH).json()["watching"] is None
    assert attempts(api) == ["applied", "ended"]


def test_delete_with_rollback_takes_the_version_back(api):
    before = api.http.get("/api/policy").json()["coefficients"]
    version = opened(api).json()["version"]
    ended = api.http.delete(PATH, headers={"If-Match": f'"{version}"'}, params={"rollback": "true"})
    assert ended.json()["state"] == "ended"
    policy = api.http.get("/api/policy").json()
    assert (policy["version"], policy["coefficients"]) == (version + 1, before)


def test_a_change_under_a_guard_is_409_unless_it_ends_it(api):
    version = opened(api).json()["version"]
    headers = {"If-Match": f'"{version}"'}
    change = {"coefficients": {"terminal_value": 3}}
    body = problem(api.http.put("/api/policy", json=change, headers=headers), 409, "guard_watches")
    assert body["version"] == version
    problem(opened(api), 409, "guard_watches")
    made = api.http.put("/api/policy", json={**change, "end_guard": True, "actor": "lee"}, headers=headers)
    assert made.status_code == 200
    (guard,) = api.http.get(PATH).json()["items"]
    assert guard["reason"] == f"version {version + 1} by lee replaced it"
    assert attempts(api) == ["applied", "guarded", "guarded", "applied"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"minutes": 0}, 422, "invalid_value"),
        ({"minutes": "5"}, 422, "invalid_value"),
        ({"minutes": True}, 422, "invalid_value"),
        ({"limits": []}, 422, "invalid_value"),
        ({"limits": {"p99": {"ratio": 1}}}, 422, "invalid_value"),
        ({"limits": {"throughput": 0.9}}, 422, "invalid_value"),
        ({"limits": {"throughput": {"ratio": 1, "absolute": 1}}}, 422, "invalid_value"),
        ({"limits": {"throughput": {"ratio": "1"}}}, 422, "invalid_value"),
        ({"limits": {**ABSOLUTE, "first_token_p99": {"absolute": 1, "samples": 0.5}}}, 422, "invalid_value"),
        ({"limits": {**ABSOLUTE, "first_token_p99": None}}, 422, "invalid_value"),
        ({"limits": None}, 422, "invalid_value"),  # ratios to an hour without traffic
        ({"coefficients": {}}, 422, "invalid_value"),
        ({"coefficients": {"terminal_value": -1}}, 422, "invalid_policy"),
        ({"coefficients": []}, 422, "invalid_value"),
        ({"end_guard": 1}, 422, "invalid_value"),
        ({"actor": 5}, 422, "invalid_value"),
        ({"guard": 1}, 422, "invalid_value"),
    ],
    ids=str,
)
def test_a_guard_that_cannot_be_opened_changes_nothing(api, body, status, code):
    problem(opened(api, body), status, code)
    assert api.http.get(PATH).json() == {"watching": None, "items": [], "next": None}
    assert api.http.get("/api/policy").json()["version"] == api.version
    assert all(version <= api.version for version, _ in api.engine.policies)


def test_the_version_must_be_named_and_be_the_current_one(api):
    problem(opened(api, version=""), 428, "if_match_required")
    problem(opened(api, version=f'"{api.version + 7}"'), 409, "stale_policy")
    problem(api.http.delete(PATH), 428, "if_match_required")
    problem(api.http.delete(PATH, headers={"If-Match": '"1"'}), 404, "no_guard")
    problem(api.http.delete(PATH, headers={"If-Match": '"1"'}, params={"rollback": "yes"}), 400, "invalid_request")
    problem(api.http.get(PATH, params={"limit": 0}), 400, "invalid_request")
    assert attempts(api) == ["stale", "invalid"]


@pytest.mark.postgresql
def test_what_one_server_applies_reaches_the_engine_of_another_on_the_same_database(postgresql_url, tmp_path):
    """Two servers, each with an engine; every one of them ends with the same version, whoever changed it."""
    stores = [open_database(postgresql_url), open_database(postgresql_url)]
    resolve_initial_policy(stores[0], Settings(data_dir=str(tmp_path), database=postgresql_url, threads=1))
    with serving(stores[0], tmp_path) as here, serving(stores[1], tmp_path) as there:
        servers = (here, there)
        for number in range(6):
            server = servers[number % 2]
            version = server.http.get("/api/policy").json()["version"]
            body = {"coefficients": {"token_fairness": 30 + number}, "actor": f"op{number}"}
            answer = server.http.put("/api/policy", json=body, headers={"If-Match": f'"{version}"'})
            assert answer.status_code == 200, answer.text
            made = answer.json()["version"]
            for other in servers:
                wait_until(
                    lambda o=other, v=made: o.engine.policies[-1:] and o.engine.policies[-1][0] == v, "the version"
                )
                assert other.engine.policies[-1][1]["token_fairness"] == 30 + number
        guard = opened(here).json()
        wait_until(lambda: there.engine.policies[-1][0] == guard["version"], "the version on trial")
        there.http.delete(PATH, headers={"If-Match": f'"{guard["version"]}"'}, params={"rollback": "true"})
        wait_until(lambda: here.engine.policies[-1][0] == guard["version"] + 1, "the restored version")
        for server in servers:
            told = [version for version, _ in server.engine.policies]
            assert told == sorted(told), "no engine goes back and forth"
    for store in stores:
        store.dispose()
