"""Who makes a change: a name that is typed or, where the server asks for credentials, the credential's own."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc

from dashboard import checks
from dashboard.caller import NOT_ALLOWED, caller, may_change
from service.control.checks import MAX_ACTOR

ACTOR_PROBLEM = "Say who you are"


def signed_by(typed: object) -> str:
    """The name that a change is recorded under; empty where nobody said it. Raises RefusedInput."""
    found = caller()
    return checks.text("actor", typed, MAX_ACTOR) if found is None else found.name


def who_field(component_id: str) -> Any:
    """The field for the name. assets/policy.js remembers in this browser what is typed."""
    found = caller()
    return dmc.TextInput(
        id=component_id,
        label="Who",
        value="" if found is None else found.name,
        readOnly=found is not None,
        description=None if found is None else "from your credential",
        placeholder="your name",
        inputProps={"maxLength": MAX_ACTOR},
    )


def read_only_reason() -> str:
    """Why the present caller can change nothing; empty where they can."""
    return "" if may_change() else NOT_ALLOWED
