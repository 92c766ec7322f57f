"""The policy page for a credential: the name is the credential's, and a viewer reads only."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import Any

import pytest
import sqlalchemy as sa
from factories import fill_store

from dashboard.caller import NOT_ALLOWED, acting_for
from dashboard.context import ControlRoom
from dashboard.pages import policy
from dashboard.pages.policy.who import signed_by
from service.control.guards import GuardControl
from service.control.policy import PolicyControl
from service.control.preview.jobs import Previews
from service.credentials.caller import Caller, Role


async def accept(version: int, coefficients: dict[str, Any]) -> int:
    return 1


@pytest.fixture
def room(store: sa.Engine, sqlite_url: str, tmp_path: pathlib.Path) -> ControlRoom:
    fill_store(store, plans=10, requests=2)
    control = PolicyControl(store, accept)
    previews = Previews(tmp_path / "previews", sqlite_url, store)
    return ControlRoom(store, control, guards=GuardControl(control), previews=previews)


def components(room: ControlRoom, who: Caller | None) -> tuple[dict[str, dict[str, Any]], str]:
    """The page's components by id, and all of it as text."""
    with acting_for(who):
        page = asyncio.run(policy.page(room, ""))
    text = json.dumps(page.to_plotly_json(), default=lambda part: part.to_plotly_json())
    found: dict[str, dict[str, Any]] = {}

    def visit(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(part.get("id"), str):
                found[part["id"]] = part
            for value in part.values():
                visit(value)
        elif isinstance(part, list):
            for value in part:
                visit(value)

    visit(json.loads(text))
    return found, text


def test_without_credentials_the_name_is_typed(room: ControlRoom) -> None:
    found, text = components(room, None)
    assert found["policy-actor"]["readOnly"] is False
    assert not found["preview-start"]["disabled"]
    assert NOT_ALLOWED not in text
    assert signed_by(" olga ") == "olga"


def test_an_operators_name_is_the_credentials(room: ControlRoom) -> None:
    who = Caller("olga", Role.OPERATOR)
    found, text = components(room, who)
    for field in ("policy-actor", "policy-rollback-actor", "guard-actor"):
        assert (found[field]["value"], found[field]["readOnly"]) == ("olga", True)
    assert not found["preview-start"]["disabled"]
    assert NOT_ALLOWED not in text
    with acting_for(who):
        assert signed_by("boris") == "olga"


def test_a_viewer_sees_everything_and_can_start_nothing(room: ControlRoom) -> None:
    found, text = components(room, Caller("vera", Role.VIEWER))
    assert NOT_ALLOWED in text
    for button in ("policy-apply", "preview-start", "guard-apply", "guard-back", "guard-keep"):
        assert found[button]["disabled"], button
    assert "decode_age_price" in text


def test_a_page_without_controls_says_that_they_are_not_there(room: ControlRoom) -> None:
    found, text = components(ControlRoom(room.engine, room.control), None)
    assert "Guarded changes are not available on this server" in text
    assert "no simulator beside it" in text
    assert "preview-start" not in found
