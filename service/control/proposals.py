"""From a wanted change to a pending version: the one transaction that decides whether it may be tried."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from scheduler.policy import PolicyConfig
from service.control.checks import check_coefficients, checked_actor, checked_note, checked_version
from service.control.errors import (
    ChangeInProgress,
    ControlError,
    GuardWatches,
    InvalidGuard,
    NoGuard,
    StalePolicy,
    UnknownVersion,
    UnreadablePolicy,
)
from service.control.guard_rows import settle_guards, watching_guard
from service.control.guard_terms import Decision, GuardTerms, checked_limits, checked_minutes
from service.control.versions import (
    Outcome,
    PolicyVersion,
    find,
    insert,
    lock_versions,
    newest,
    newest_applied,
    record_attempt,
    refuse_pending,
    refuse_withdrawn,
    settle,
)
from service.store.engines import write_transaction

ABANDONED_AFTER = dt.timedelta(seconds=60)


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """A change that someone wants. With `rollback` the values of `to_version` (None: the parent) are taken over.

    `guard`: the change is on trial. `end_guard`: it may replace a version that a guard watches, as a rollback always
    may. `decision`: it is that guard's own, and closes it.
    """

    expected_version: int
    actor: str
    note: str = ""
    preset: str | None = None
    coefficients: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rollback: bool = False
    to_version: int | None = None
    guard: GuardTerms | None = None
    end_guard: bool = False
    decision: Decision | None = None

    def request(self) -> dict[str, Any]:
        """What was asked, for the audit."""
        names = ["expected_version", "note", *(["to_version"] if self.rollback else ["preset", "coefficients"])]
        guard = {} if self.guard is None else {"minutes": self.guard.minutes, **self.guard.limits.summary()}
        ends = {"end_guard": True} if self.end_guard else {}
        return {**{name: getattr(self, name) for name in names}, **ends, **guard}

    def checked(self) -> Proposal:
        """The proposal with tidy text. Raises InvalidChange or InvalidPolicy; nothing was read or written."""
        checked_version("expected_version", self.expected_version)
        if self.to_version is not None:
            checked_version("to_version", self.to_version)
        check_coefficients(self.preset, self.coefficients)
        if self.guard is not None:
            checked_minutes(self.guard.minutes)
            checked_limits(self.guard.limits)
        return dataclasses.replace(self, actor=checked_actor(self.actor), note=checked_note(self.note))


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """What is in force, and the version that waits for the engine; None when nothing would change."""

    current: PolicyVersion
    pending: PolicyVersion | None


def refuse_abandoned(engine: sa.Engine, now: dt.datetime) -> None:
    """Refuses a pending version whose process died. Raises StoreError."""
    with write_transaction(engine) as connection:
        lock_versions(connection)
        refuse_pending(connection, before=now - ABANDONED_AFTER)


def record_invalid(engine: sa.Engine, proposal: Proposal, reason: str, now: dt.datetime) -> None:
    """Writes a change that failed its checks into the audit. Raises StoreError."""
    with write_transaction(engine) as connection:
        record_attempt(connection, "invalid", reason, proposal.request(), proposal.actor, now)


def open_change(engine: sa.Engine, proposal: Proposal, withdrawn: Iterable[int], now: dt.datetime) -> Opened:
    """Writes the proposal as a pending version when it builds on the newest applied one and none other is pending.

    `withdrawn` are versions of this process that the store still has to learn are refused. A pending version older
    than ABANDONED_AFTER belongs to a process that died, and is refused. Every outcome but success leaves a row in
    the audit, in the same transaction.

    Raises StalePolicy, ChangeInProgress, GuardWatches, InvalidGuard (a guarded change that changes nothing), NoGuard (a
    decision of a guard that was ended meanwhile), UnknownVersion, NoPolicy, UnreadablePolicy, StoreError.
    """
    with write_transaction(engine) as connection:
        lock_versions(connection)
        refuse_withdrawn(connection, withdrawn)
        refuse_pending(connection, before=now - ABANDONED_AFTER)
        current = newest_applied(connection)
        try:
            config, note = _wanted(connection, proposal, current)
            _check_turn(connection, proposal, current, config)
        except ControlError as error:
            failure: ControlError = error
            record_attempt(connection, outcome_of(error), str(error), proposal.request(), proposal.actor, now)
        else:
            if config == current.config:
                record_attempt(connection, "unchanged", "", proposal.request(), proposal.actor, now)
                return Opened(current, None)
            pending = insert(
                connection,
                config,
                state="pending",
                actor=proposal.actor,
                note=note,
                parent=current.version,
                now=now,
            )
            return Opened(current, pending)
    raise failure


def restore_without_engine(engine: sa.Engine, proposal: Proposal, now: dt.datetime) -> PolicyVersion:
    """A guard's decision when the engine does not answer: the earlier values come into force in the store alone.

    An engine that starts takes the newest applied version, and one that is reached again is told. Raises what
    `open_change` raises.
    """
    opened = open_change(engine, proposal, (), now)
    with write_transaction(engine) as connection:
        lock_versions(connection)
        made = opened.pending
        assert made is not None, "a guarded version differs from the one before it"
        if settle(connection, made.version, "applied", now) != "applied":
            raise ChangeInProgress(f"version {made.version} was withdrawn by a restart; it is tried again")
        settle_guards(connection, made, now, decision=proposal.decision)
        record_attempt(connection, "applied", "no engine answered", proposal.request(), proposal.actor, now)
    return made


def outcome_of(error: ControlError) -> Outcome:
    """Of a change that was not tried."""
    if isinstance(error, StalePolicy):
        return "stale"
    if isinstance(error, GuardWatches):
        return "guarded"
    return "pending" if isinstance(error, ChangeInProgress) else "invalid"


def _wanted(connection: sa.Connection, proposal: Proposal, current: PolicyVersion) -> tuple[PolicyConfig, str]:
    """The values and the note that the caller asked for, seen from the version that the caller looked at."""
    if not proposal.rollback:
        return _merged(_seen(connection, proposal, current).config, proposal), proposal.note
    number = proposal.to_version
    if number is None:
        number = current.parent_version
    target = None if number is None else find(connection, number)
    if target is None:
        raise UnknownVersion(
            "there is no earlier policy version" if number is None else f"there is no policy version {number}"
        )
    if target.applied_at is None:
        raise UnknownVersion(f"policy version {number} is {target.state} and was never in force")
    note = f"rollback to {target.version}"
    return target.config, f"{note}: {proposal.note}" if proposal.note else note


def _seen(connection: sa.Connection, proposal: Proposal, current: PolicyVersion) -> PolicyVersion:
    """The version that the caller looked at; the current one when that cannot be read."""
    if proposal.expected_version == current.version:
        return current
    try:
        return find(connection, proposal.expected_version) or current
    except UnreadablePolicy:
        return current


def _merged(base: PolicyConfig, proposal: Proposal) -> PolicyConfig:
    start = base if proposal.preset is None else PolicyConfig.preset(proposal.preset)
    return start.merged(proposal.coefficients)


def _check_guard(terms: GuardTerms, *, changes: bool) -> None:
    """Raises InvalidGuard for a trial that can only end undecided."""
    if not changes:
        raise InvalidGuard("coefficients", "change nothing, so there is nothing to guard")
    for check in terms.evidence.checks:
        if check.bound is None:
            raise InvalidGuard(
                f"limits.{check.name}",
                f"is a ratio to the hour before, which has {check.before_samples:,} samples, and {check.needed:,} are "
                "needed; ask for fewer samples, or give an absolute value",
            )


def _check_turn(connection: sa.Connection, proposal: Proposal, current: PolicyVersion, wanted: PolicyConfig) -> None:
    if proposal.expected_version != current.version:
        yours, theirs = wanted.as_dict(), current.config.as_dict()
        difference = {n: {"yours": yours[n], "theirs": theirs[n]} for n in yours if yours[n] != theirs[n]}
        raise StalePolicy(proposal.expected_version, current, difference)
    if proposal.guard is not None:
        _check_guard(proposal.guard, changes=wanted != current.config)
    guard = watching_guard(connection)
    if proposal.decision is not None and (guard is None or guard.version != current.version):
        raise NoGuard(f"no guard watches policy version {current.version} any more")
    if proposal.rollback or proposal.end_guard:
        guard = None
    if guard is not None and guard.version == current.version and wanted != current.config:
        raise GuardWatches(guard.version, guard.actor, guard.until)
    check_none_waits(connection)


def check_none_waits(connection: sa.Connection) -> None:
    """Raises ChangeInProgress while a version waits for the engine."""
    waiting = newest(connection, "pending")
    if waiting is not None:
        raise ChangeInProgress(
            f"version {waiting['version']} by {waiting['actor']} waits for the engine since "
            f"{waiting['created_at']:%H:%M:%S} UTC; try again in a moment"
        )
