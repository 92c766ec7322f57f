"""Guarded changes of the policy: a version on trial for a chosen time, taken back by itself when it breaks a limit.

A guard is opened with the change that it watches: the version is marked applied and the guard written in one
transaction, so neither exists without the other. While one watches, the store's trace is compared with the hour before:

    watching ──► held          every limit held to the end: the version stays
        │
        ├──────► rolled_back   a limit was broken, or nothing could be decided: a version by "guard" restores the values
        └──────► ended         somebody ended it, or replaced or rolled back the version by hand

A change while a guard watches is refused (GuardWatches) unless it says that it ends the guard; a rollback always may.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler.errors import InvalidPolicy
from service.control.checks import checked_actor, checked_note, checked_version
from service.control.errors import ControlError, InvalidChange, NoGuard
from service.control.evidence import read_measures
from service.control.guard_rows import close_guard, find_guard, list_guards, watching_guard
from service.control.guard_terms import (
    DEFAULT_MINUTES,
    GUARD_ACTOR,
    LEAST_MINUTES,
    LIMIT_NAMES,
    MOST_MINUTES,
    UNITS,
    Evidence,
    Guard,
    GuardLimits,
    GuardState,
    GuardTerms,
    Limit,
    LimitCheck,
    Measure,
    Measures,
    Verdict,
    judge,
    limits_from,
)
from service.control.proposals import ABANDONED_AFTER, Proposal, check_none_waits, outcome_of
from service.control.versions import lock_versions, record_attempt, refuse_pending
from service.store.engines import read_transaction, write_transaction

if TYPE_CHECKING:
    from service.control.policy import PolicyControl

__all__ = [
    "DEFAULT_MINUTES",
    "GUARD_ACTOR",
    "LEAST_MINUTES",
    "LIMIT_NAMES",
    "MOST_MINUTES",
    "UNITS",
    "Evidence",
    "Guard",
    "GuardControl",
    "GuardLimits",
    "GuardState",
    "Limit",
    "LimitCheck",
    "Verdict",
    "limits_from",
]

T = TypeVar("T")
BEFORE = dt.timedelta(hours=1)
"""What a trial is compared with."""
NOTHING = Measures(Measure(None, 0), Measure(None, 0), Measure(None, 0))


class GuardControl:
    """Opens, shows and ends guards through one PolicyControl. Holds nothing itself: make one wherever it is needed."""

    def __init__(self, policy: PolicyControl) -> None:
        self._policy = policy

    async def open(
        self,
        *,
        expected_version: int,
        minutes: float = DEFAULT_MINUTES,
        limits: GuardLimits | None = None,
        preset: str | None = None,
        coefficients: Mapping[str, Any] | None = None,
        actor: str,
        note: str = "",
        end_guard: bool = False,
    ) -> Guard:
        """Applies a change like PolicyControl.change, with a guard that watches it; without `limits` the default ones.

        Reads the hour before first, so that it may take a second. Raises what `change` raises, InvalidGuard for minutes
        or limits that cannot be used, for values that change nothing, and for a ratio to an hour that has too few
        samples, and GuardWatches while another one watches, unless `end_guard`.
        """
        now = self._policy.now()
        wanted = GuardLimits() if limits is None else limits
        evidence = Evidence(before_since=now - BEFORE, before_until=now)
        proposal = Proposal(
            expected_version,
            actor,
            note,
            preset,
            {} if coefficients is None else coefficients,
            guard=GuardTerms(minutes, wanted, evidence),
            end_guard=end_guard,
        )
        made = await self._policy.carry_out(await self._with_the_hour_before(proposal))
        guard = await asyncio.to_thread(self._read, find_guard, made.version)
        assert guard is not None, "a guard is written with its version"
        return guard

    async def current(self) -> Guard | None:
        """The one that watches, with the evidence so far. Raises StoreError."""
        return await asyncio.to_thread(self._read, watching_guard)

    async def history(self, limit: int = 20) -> list[Guard]:
        """The newest guards, newest first, the watching one too. Raises StoreError."""
        return await asyncio.to_thread(self._read, list_guards, limit)

    async def end(self, *, expected_version: int, rollback: bool = False, actor: str, note: str = "") -> Guard:
        """Ends the watching guard and keeps its version or, with `rollback`, restores the values before it.

        Returns the guard as it ended. Raises NoGuard when none watches version `expected_version`, ChangeInProgress
        while another change, such as the guard's own rollback, waits for the engine, and what PolicyControl.rollback
        raises.
        """
        expected = checked_version("expected_version", expected_version)
        who, why = checked_actor(actor), checked_note(note)
        if not rollback:
            return await asyncio.to_thread(self._end_and_keep, expected, who, why)
        guard = await self.current()
        if guard is None or guard.version != expected:
            return await asyncio.to_thread(self._end_and_keep, expected, who, why)  # says that there is none
        await self._policy.rollback(expected_version=expected, to_version=guard.parent, actor=who, note=why)
        closed = await asyncio.to_thread(self._read, find_guard, expected)
        assert closed is not None, "guards are never deleted"
        return closed

    async def _with_the_hour_before(self, proposal: Proposal) -> Proposal:
        """The proposal with what the hour before was like. What cannot be proposed at all is left as it is: the
        control refuses it and says so in the audit.
        """
        terms = proposal.guard
        assert terms is not None, "only guarded changes come here"
        try:
            proposal.checked()
        except (InvalidPolicy, InvalidChange):
            return proposal
        span = terms.evidence.before_since, terms.evidence.before_until
        before = await asyncio.to_thread(read_measures, self._policy.store, *span)
        evidence = dataclasses.replace(terms.evidence, checks=judge(terms.limits, before, NOTHING))
        return dataclasses.replace(proposal, guard=dataclasses.replace(terms, evidence=evidence))

    def _end_and_keep(self, version: int, actor: str, note: str) -> Guard:
        now, engine = self._policy.now(), self._policy.store
        request = {"end_guard": version, "note": note}
        with write_transaction(engine) as connection:
            lock_versions(connection)
            refuse_pending(connection, before=now - ABANDONED_AFTER)
            try:
                guard = watching_guard(connection)
                if guard is None or guard.version != version:
                    raise NoGuard(f"no guard watches policy version {version}")
                check_none_waits(connection)
            except ControlError as error:
                failure: ControlError = error
                record_attempt(connection, outcome_of(error), str(error), request, actor, now)
            else:
                reason = f"ended by {actor}, who kept the version" + (f": {note}" if note else "")
                close_guard(connection, version, "ended", reason, now)
                record_attempt(connection, "ended", "", request, actor, now)
                closed = find_guard(connection, version)
                assert closed is not None, "guards are never deleted"
                return closed
        raise failure

    def _read(self, query: Callable[..., T], *arguments: Any) -> T:
        with read_transaction(self._policy.store) as connection:
            return query(connection, *arguments)
