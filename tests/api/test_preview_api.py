"""POST /api/policy/preview, GET and DELETE of its result."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator

import pytest
from fake_engine import Api, serving
from recorded_traffic import record

from service.control.policy import resolve_initial_policy
from service.settings import Settings
from service.store.database import open_database

PATH = "/api/policy/preview"


@pytest.fixture(scope="module")
def idle_api(_sqlite_template: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with a policy that has not planned anything yet."""
    folder = tmp_path_factory.mktemp("previews")
    shutil.copy(_sqlite_template, folder / "helios.db")
    store = open_database(f"sqlite:///{folder / 'helios.db'}")
    resolve_initial_policy(store, Settings(data_dir=str(folder), database=str(store.url), threads=1))
    with serving(store, folder) as api:
        yield api
    store.dispose()


@pytest.fixture
def recorded_api(sqlite_url: str, tmp_path: pathlib.Path) -> Iterator[Api]:
    """A server over a store with a little traffic."""
    store = open_database(sqlite_url)
    record(store, seconds=4)
    with serving(store, tmp_path) as api:
        yield api
    store.dispose()


def test_a_preview_is_started_followed_cancelled_and_listed(recorded_api: Api) -> None:
    http = recorded_api.http
    answer = http.post(PATH, json={"coefficients": {"terminal_value": 3}, "minutes": 1, "actor": "ada"})
    assert answer.status_code == 202, answer.text
    started = answer.json()
    assert answer.headers["location"] == f"{PATH}/{started['id']}"
    assert (started["by"], started["state"], started["ended"], started["result"]) == ("ada", "queued", False, None)
    assert started["request"]["draft"]["terminal_value"] == 3.0
    assert started["request"]["running"]["terminal_value"] == 256.0
    assert http.delete(answer.headers["location"]).json()["state"] == "cancelled"
    assert http.get(answer.headers["location"]).json()["ended"]
    listed = http.get(PATH).json()
    assert [(item["id"], "result" in item) for item in listed["items"]] == [(started["id"], False)]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"coefficients": {"no_such": 1}}, "no_such"),
        ({"coefficients": {"terminal_value": -1}}, "terminal_value"),
        ({"coefficients": [1]}, "coefficients"),
        ({"preset": "fast"}, "preset"),
        ({"minutes": 0}, "minutes"),
        ({"minutes": "ten"}, "minutes"),
        ({"seed": 1.5}, "seed"),
        ({"run": ""}, "run"),
        ({"nonsense": 1}, "nonsense"),
        ({"sweep": {"no_such": [1]}}, "sweep.no_such"),
        ({"sweep": {"terminal_value": []}}, "sweep.terminal_value"),
        ({"sweep": {"terminal_value": [1, "x"]}}, "sweep.terminal_value"),
        ({"sweep": {"terminal_value": list(range(6)), "token_fairness": list(range(5))}}, "sweep"),
        ({"sweep": {"terminal_value": [1], "token_fairness": [1], "decode_age_price": [1]}}, "sweep"),
    ],
)
def test_what_cannot_be_previewed_is_refused_by_name(idle_api: Api, body: dict[str, object], named: str) -> None:
    answer = idle_api.http.post(PATH, json=body)
    assert answer.status_code == 422, answer.text
    assert named in answer.json()["problems"]


def test_without_traffic_there_is_nothing_to_preview(idle_api: Api) -> None:
    answer = idle_api.http.post(PATH, json={"coefficients": {"terminal_value": 3}})
    assert (answer.status_code, answer.json()["code"]) == (409, "nothing_recorded")
    assert "no traffic to replay" in answer.json()["detail"]
    assert idle_api.http.post(PATH, json={"until": "yesterday"}).status_code == 400
    assert idle_api.http.get(PATH).json() == {"items": [], "next": None}


def test_an_unknown_preview_is_not_found(idle_api: Api) -> None:
    for name in ("0" * 24, "..%2f..%2fhelios.db", "x"):
        assert idle_api.http.get(f"{PATH}/{name}").status_code == 404
        assert idle_api.http.delete(f"{PATH}/{name}").status_code == 404
