"""Carries out what the form asks for, through PolicyControl, and says what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from typing import Any

from dashboard.errors import RefusedInput
from dashboard.formatting import age
from dashboard.pages.policy import outcome
from dashboard.pages.policy.guard_form import GuardDraft
from dashboard.pages.policy.history import HISTORY_LIMIT
from dashboard.pages.policy.values import Draft, Loaded, differences
from scheduler.errors import InvalidPolicy
from service.control.errors import (
    ChangeInProgress,
    ChangeRefused,
    ControlError,
    EngineDidNotAnswer,
    GuardWatches,
    InvalidChange,
    NoGuard,
    StalePolicy,
    UnknownVersion,
)
from service.control.guards import GuardControl
from service.control.policy import PolicyControl, PolicyVersion
from service.ipc.errors import EngineError
from service.store.errors import StoreError

TITLES: tuple[tuple[type[Exception], str], ...] = (
    (EngineDidNotAnswer, "Nothing was changed: the engine did not answer"),
    (EngineError, "Nothing was changed: the engine cannot be reached"),
    (StoreError, "Nothing was changed: the trace store cannot be used now"),
    (ChangeInProgress, "Nothing was changed: another change is under way"),
    (ChangeRefused, "Nothing was changed: a restart came between"),
    (GuardWatches, "Nothing was changed: a version is on trial; roll it back or keep it first"),
    (NoGuard, "Nothing was changed: the trial is over already"),
    (UnknownVersion, "Nothing was changed: no such version"),
    (InvalidChange, "Nothing was changed: an entry cannot be used"),
    (ControlError, "Nothing was changed"),
)
EXPECTED = tuple(kind for kind, _ in TITLES)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What to show: `message` and `stale` are components or None; `version` is the one in force, None if unknown."""

    message: Any
    stale: Any = None
    version: PolicyVersion | None = None


async def apply_change(control: PolicyControl, loaded: Loaded, draft: Draft, actor: str, note: str) -> Result:
    """Applies a form's draft on top of the version that it was loaded with."""
    if draft.problems:
        return Result(outcome.invalid(draft.problems))
    wanted = control.change(
        expected_version=loaded.version, preset=draft.preset, coefficients=draft.to_send, actor=actor, note=note
    )
    return await _settled(wanted, loaded, "applied")


async def open_trial(
    control: PolicyControl, guards: GuardControl, loaded: Loaded, draft: Draft, asked: GuardDraft, actor: str, note: str
) -> Result:
    """Applies a form's draft like `apply_change`, with a guard that watches it."""
    if draft.problems:
        return Result(outcome.invalid(draft.problems))

    async def opened() -> PolicyVersion:
        await guards.open(
            expected_version=loaded.version,
            minutes=asked.minutes,
            limits=asked.limits,
            preset=draft.preset,
            coefficients=draft.to_send,
            actor=actor,
            note=note,
        )
        return await control.current()

    return await _settled(opened(), loaded, f"applied, on trial for {age(asked.minutes * 60e3)}")


async def end_trial(
    control: PolicyControl, guards: GuardControl, loaded: Loaded, version: int, *, back: bool, actor: str
) -> Result:
    """Ends the trial of `version` now: it is kept or, with `back`, taken back."""

    async def ended() -> PolicyVersion:
        await guards.end(expected_version=version, rollback=back, actor=actor)
        return await control.current()

    return await _settled(ended(), loaded, f"applied, in place of version {version}" if back else "kept", kept=not back)


async def roll_back(control: PolicyControl, loaded: Loaded, to_version: int, actor: str, note: str) -> Result:
    """Makes a new version with the values of `to_version`."""
    wanted = control.rollback(expected_version=loaded.version, to_version=to_version, actor=actor, note=note)
    return await _settled(wanted, loaded, f"applied, with the values of version {to_version}")


async def _settled(wanted: Awaitable[PolicyVersion], loaded: Loaded, verb: str, *, kept: bool = False) -> Result:
    try:
        version = await wanted
    except InvalidPolicy as error:
        return Result(outcome.invalid(error.problems))
    except StalePolicy as error:
        changes = differences(loaded.values, error.current.config.as_dict())
        return Result(None, outcome.stale(error.current, changes, loaded.version))
    except EXPECTED as error:
        title = next(title for kind, title in TITLES if isinstance(error, kind))
        return Result(outcome.refused(title, str(error)))
    if kept:
        return Result(outcome.kept(version), version=version)
    if version.version == loaded.version:
        return Result(outcome.unchanged(version), version=version)
    return Result(outcome.applied(version, verb), version=version)


async def find_version(control: PolicyControl, number: int) -> PolicyVersion:
    """A version that the history offers to go back to. Raises RefusedInput, ControlError, StoreError."""
    for version in await control.history(HISTORY_LIMIT):
        if version.version == number and version.state == "applied":
            return version
    raise RefusedInput("version", "must be a version that was in force and is in the history")
