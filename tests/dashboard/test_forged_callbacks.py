"""Callbacks posted by something else than the page: whatever their shape, they are 4xx and leave no traceback."""

from __future__ import annotations

import json
import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import dash
import pytest
import sqlalchemy as sa
from dash import Input, Output
from factories import fill_store
from litestar import Litestar
from litestar.testing import TestClient

from dashboard.app import create_dashboard
from dashboard.asgi import mount
from service.control.guards import GuardControl
from service.control.policy import PolicyControl
from service.control.preview.jobs import Previews

UPDATE = "/dashboard/_dash-update-component"
JSON = {"content-type": "application/json"}
Client = TestClient[Litestar]
MISSING = object()


async def accept(_version: int, _coefficients: object) -> int:
    return 1


@pytest.fixture
def client(store: sa.Engine, sqlite_url: str, tmp_path: pathlib.Path) -> Iterator[Client]:
    """As the package's, with every page's callbacks, and with logging left as it is, so that caplog sees it."""
    fill_store(store, plans=10, requests=2)
    control = PolicyControl(store, accept)
    previews = Previews(tmp_path / "previews", sqlite_url, store)
    app = create_dashboard(engine=store, control=control, guards=GuardControl(control), previews=previews)
    with TestClient(Litestar([mount(app)], logging_config=None)) as made:
        yield made


def part(component: object, prop: str) -> object:
    """An entry as the page posts it; of a pattern, a list with one component."""
    if isinstance(component, str) and component.startswith("{"):
        pattern = json.loads(component)
        return [{"id": {**pattern, "name": "token_fairness"}, "property": prop, "value": None}]
    return {"id": component, "property": prop, "value": None}


def good_bodies(client: Client) -> list[dict[str, Any]]:
    """One well-shaped post of every callback that the server runs, with empty values."""
    bodies = []
    for callback in client.get("/dashboard/_dash-dependencies").json():
        if callback["clientside_function"] is not None:
            continue
        names = [name.rpartition(".") for name in callback["output"].strip(".").split("...")]
        outputs = [part(component, prop) for component, _, prop in names]
        bodies.append(
            {
                "output": callback["output"],
                "outputs": outputs if callback["output"].startswith("..") else outputs[0],
                "inputs": [part(entry["id"], entry["property"]) for entry in callback["inputs"]],
                "state": [part(entry["id"], entry["property"]) for entry in callback["state"]],
                "changedPropIds": [],
            }
        )
    assert len(bodies) > 5
    return bodies


def post(client: Client, body: object) -> int:
    answer = client.post(UPDATE, content=json.dumps(body), headers=JSON)
    assert "Traceback" not in answer.text
    return answer.status_code


def no_traceback(caplog: pytest.LogCaptureFixture) -> bool:
    return not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


WRONG_LISTS = [
    [], [{}], [None], [[]], [[{}]], None, "x", 5, {}, True, [1], ["x"], [{"id": "page"}], [{"id": 1, "property": 2}],
]  # fmt: skip


@pytest.mark.parametrize("field", ["inputs", "state", "outputs"])
@pytest.mark.parametrize("wrong", WRONG_LISTS, ids=json.dumps)
def test_entries_of_another_shape_than_the_callbacks_are_400(client: Client, field: str, wrong: object, caplog) -> None:
    for body in good_bodies(client):
        if body[field] != wrong:
            assert post(client, {**body, field: wrong}) == 400, body["output"]
    assert no_traceback(caplog)


@pytest.mark.parametrize("field", ["inputs", "state", "outputs"])
def test_one_wrong_entry_among_right_ones_is_400(client: Client, field: str, caplog) -> None:
    for body in good_bodies(client):
        entries = body[field]
        if not isinstance(entries, list) or not entries:
            continue
        for index, entry in enumerate(entries):
            for wrong in (
                None,
                {},
                [],
                [None],
                [{}],
                "x",
                {"id": "no-such", "property": "value"},
                [entry],
                [entry] * 2,
            ):
                if wrong == [] and isinstance(entry, list):
                    continue  # a pattern may match nothing
                changed = [*entries[:index], wrong, *entries[index + 1 :]]
                assert post(client, {**body, field: changed}) == 400, (body["output"], wrong)
        assert post(client, {**body, field: [*entries, entries[0]]}) == 400
    assert no_traceback(caplog)


@pytest.mark.parametrize("changed", [None, "x", [1], [None], [{}], {}])
def test_changed_properties_that_are_no_list_of_names_are_400(client: Client, changed: object) -> None:
    for body in good_bodies(client):
        assert post(client, {**body, "changedPropIds": changed}) == 400


@pytest.mark.parametrize(
    "component",
    [
        "x", None, [], {}, {"type": "coefficient"}, {"type": "other", "name": "token_fairness"},
        {"type": "coefficient", "name": None}, {"type": "coefficient", "name": ["ALL"]},
        {"type": "coefficient", "name": {}}, {"type": "coefficient", "name": "token_fairness", "more": 1},
    ],
)  # fmt: skip
def test_components_that_no_pattern_matches_are_400(client: Client, component: object, caplog) -> None:
    patterned = [body for body in good_bodies(client) if any(isinstance(entry, list) for entry in body["inputs"])]
    assert patterned
    for body in patterned:
        entries = [[{**e[0], "id": component}] if isinstance(e, list) else e for e in body["inputs"]]
        assert post(client, {**body, "inputs": entries}) == 400
    assert no_traceback(caplog)


VALUES = [None, "x", "\u0000", -1, 1e308, True, [], [[]], [None], {}, {"values": None}, {"name": []}, "9" * 400]


@pytest.mark.parametrize("value", [*VALUES, MISSING], ids=range(len(VALUES) + 1))
def test_values_of_every_kind_in_well_shaped_posts_never_fail_in_the_server(
    client: Client, value: object, caplog
) -> None:
    def filled(entry: Any) -> Any:
        if isinstance(entry, list):
            return [filled(inner) for inner in entry]
        return {**{k: v for k, v in entry.items() if k != "value"}, **({} if value is MISSING else {"value": value})}

    for body in good_bodies(client):
        triggered = [f"{e['id']}.{e['property']}" for e in body["inputs"] if isinstance(e, dict)]
        for changed in ([], triggered, ["x"], ["{.x"], ['{"a":1}.x']):
            posted = {**body, **{f: [filled(e) for e in body[f]] for f in ("inputs", "state")}}
            assert post(client, {**posted, "changedPropIds": changed}) in (200, 204, 400, 422), body["output"]
    assert no_traceback(caplog)


def raising(error: Exception) -> Client:
    app = dash.Dash("raising", backend="fastapi", url_base_pathname="/dashboard/", add_log_handler=False)
    app.layout = dash.html.Div()

    @app.callback(Output("a", "children"), Input("b", "value"))
    async def fail(_value: object) -> None:
        raise error

    return TestClient(Litestar([mount(app)], logging_config=None), raise_server_exceptions=False)


@pytest.mark.parametrize(
    "error", [TypeError("t"), KeyError("k"), AttributeError("a"), OverflowError("o"), IndexError()]
)
def test_what_a_callback_raises_on_its_values_is_422_and_one_line_in_the_log(error: Exception, caplog) -> None:
    body = {"output": "a.children", "outputs": part("a", "children"), "inputs": [part("b", "value")]}
    with raising(error) as client:
        assert post(client, body) == 422
    assert [r.levelname for r in caplog.records if r.name == "dashboard.asgi"] == ["WARNING"]
    assert type(error).__name__ in caplog.text
    assert no_traceback(caplog)


def test_a_fault_that_no_input_explains_stays_500() -> None:
    body = {"output": "a.children", "outputs": part("a", "children"), "inputs": [part("b", "value")]}
    with raising(OSError("disk")) as client:
        assert client.post(UPDATE, content=json.dumps(body), headers=JSON).status_code == 500


def test_nothing_forged_changes_the_policy(client: Client, store: sa.Engine) -> None:
    count = sa.text("select count(*) from policy_versions")
    with store.connect() as connection:
        before = connection.execute(count).scalar_one()
    for body in good_bodies(client):
        post(client, body)
        post(client, {**body, "inputs": []})
    with store.connect() as connection:
        assert connection.execute(count).scalar_one() == before
