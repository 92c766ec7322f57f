"""Typed errors of the policy control.

    ControlError
    ├── InvalidChange        an actor, note or version number that cannot be used; `name` says which
    ├── StalePolicy          the caller's version is not the newest one; carries both sides
    ├── ChangeInProgress     another change waits for the engine; try again
    ├── UnknownVersion       no such policy version, or one that was never in force
    ├── EngineDidNotAnswer   the engine did not acknowledge in time; the change was withdrawn
    ├── ChangeRefused        the change was withdrawn while it was being applied, by a restart
    ├── InvalidGuard         a guard's minutes, limits or change that cannot be used; an InvalidChange
    ├── GuardWatches         a guard watches the version in force, and the change does not say that it ends it
    ├── NoGuard              no guard watches the version that the caller named
    ├── NoPolicy             the store holds no applied version yet
    └── UnreadablePolicy     a stored version holds values that this Helios cannot use

Beside these a change raises scheduler.errors.InvalidPolicy (bad coefficients), service.store.errors.StoreError
(database) and whatever the engine's client raises. After any of them the policy in force is what it was before.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.control.versions import PolicyVersion


class ControlError(Exception):
    """Base of every error that the policy control raises on purpose."""


class InvalidChange(ControlError, ValueError):
    """A field of the change that cannot be used: `name` is the field, `problem` what is allowed."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"{name}: {problem}")


class InvalidGuard(InvalidChange):
    """A guard that cannot be opened as asked."""


class GuardWatches(ControlError):
    """A guard watches the version in force: end it, roll it back, or say that the change ends it.

    `version` is the guarded one, `until` when the guard will have decided.
    """

    def __init__(self, version: int, actor: str, until: dt.datetime) -> None:
        self.version = version
        self.until = until
        super().__init__(
            f"a guard watches version {version} by {actor} until {until:%H:%M:%S} UTC; end it first, roll back, or "
            "say with the change that it ends the guard"
        )


class NoGuard(ControlError):
    """No guard watches the version that the caller named."""


class StalePolicy(ControlError):
    """The caller looked at an older version.

    `current` is the newest applied version, with who and when. `difference` maps each coefficient that the two
    sides disagree about to {"yours": value the caller wanted, "theirs": value in force}.
    """

    def __init__(self, expected_version: int, current: PolicyVersion, difference: dict[str, dict[str, Any]]) -> None:
        self.expected_version = expected_version
        self.current = current
        self.difference = difference
        sides = "; ".join(f"{name}: yours {d['yours']}, theirs {d['theirs']}" for name, d in difference.items())
        super().__init__(
            f"version {current.version} by {current.actor} at {current.created_at:%Y-%m-%d %H:%M:%S} UTC is in force, "
            f"not {expected_version}; look at it and try again ({sides or 'no coefficient differs'})"
        )


class ChangeInProgress(ControlError):
    """Another change waits for the engine's acknowledgement."""


class UnknownVersion(ControlError, LookupError):
    """No such policy version, or one that was never in force."""


class EngineDidNotAnswer(ControlError):
    """The engine did not acknowledge the change in time; the change was withdrawn."""


class ChangeRefused(ControlError):
    """The change was withdrawn while it was being applied, because the server restarted its engine."""


class NoPolicy(ControlError):
    """The store holds no applied version yet."""


class UnreadablePolicy(ControlError):
    """A stored version holds values that this Helios cannot use."""
