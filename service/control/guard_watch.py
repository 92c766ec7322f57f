"""Watches guarded changes: looks at the trace, and keeps, or takes back, what is on trial.

Every service process on the database has one. The lease in the guard's row lets one of them look at a time; what
decides is one update of that row, so that a guard is decided once whatever the clocks and processes do. A decision to
roll back is written down first and carried out then: whoever comes next carries out what a process left when it died.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import logging
import time
from collections.abc import Callable
from typing import Any, Literal

from scheduler.errors import InvalidPolicy
from service.control.errors import (
    ChangeInProgress,
    ControlError,
    EngineDidNotAnswer,
    NoGuard,
    StalePolicy,
    UnknownVersion,
    UnreadablePolicy,
)
from service.control.evidence import measure, missing_trace, stored_until
from service.control.guard_rows import (
    close_guard,
    keep_evidence,
    take_lease,
    watching_guard,
    with_problem,
)
from service.control.guard_terms import GUARD_ACTOR, Decision, Evidence, Guard, Measure, Measures, judge
from service.control.policy import PolicyControl
from service.control.proposals import Proposal
from service.control.versions import newest_applied, record_attempt
from service.ipc.errors import EngineError
from service.store.engines import read_transaction, write_transaction
from service.store.errors import StoreError

GuardOutcome = Literal["held", "rolled_back"]
EVERY_S = 1.0
SHARE = 10
"""A look that took long is followed by a pause so many times as long, up to LONGEST_PAUSE_S."""
LONGEST_PAUSE_S = 30.0
LEASE = dt.timedelta(seconds=60)
PATIENCE_S = 30.0
"""How long after the end of a trial its last records and a missing engine are waited for."""
LONGEST_STEP_S = 2 * LONGEST_PAUSE_S
"""Between two looks: beyond this nobody watched meanwhile."""
FIRST_LOOK_S = 5.0
"""After its opening a guard counts as watched until the first look, which comes at once."""
CLOCK_STEP_S = 2.0
WATCHED_SHARE = 0.5
"""Of the trial that must have been watched."""
CLOCK_STEPPED = "the wall clock of the server was set anew during the trial"
MOST_NOTE = 400
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """When this process looked last, by both clocks, and at which guard."""

    version: int
    steady_s: float
    wall: dt.datetime


class GuardWatch:
    """One per service process, on its event loop; database work runs in threads.

    `watcher` names the process. `engine_run`: the run of this host's engine while it takes requests, else None.
    `lag_s`: how far its recorder says that it is behind, None when it says nothing. `decided` is told each decision
    that this process made.
    """

    def __init__(
        self,
        control: PolicyControl,
        *,
        watcher: str,
        engine_run: Callable[[], str | None],
        lag_s: Callable[[], float | None],
        decided: Callable[[GuardOutcome], None],
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = control
        self._watcher = watcher
        self._engine_run = engine_run
        self._lag_s = lag_s
        self._decided = decided
        self._steady_s = steady_s
        self._last: Look | None = None

    async def run(self) -> None:
        """Until cancelled. What cannot be done now is tried again."""
        complaint = ""
        while True:
            began = self._steady_s()
            try:
                await self.step()
                complaint = ""
            except (ControlError, EngineError, StoreError, InvalidPolicy) as error:
                self._last = None  # nobody watched in between
                if str(error) != complaint:
                    complaint = str(error)
                    _log.warning("the guarded policy could not be looked at: %s", complaint)
            took = 0.0 if self._last is None else self._steady_s() - began
            await asyncio.sleep(min(max(EVERY_S, SHARE * took), LONGEST_PAUSE_S))

    async def step(self) -> None:
        """One look, and what follows from it. Raises ControlError, EngineError and StoreError; nothing is lost then."""
        now, steady_s = self._control.now(), self._steady_s()  # together, however long the look takes
        run_id = self._engine_run()
        ready = run_id is not None
        guard = await asyncio.to_thread(self._claim, now, ready)
        if guard is None:
            self._last = None
            return
        if guard.reason:  # decided by a process that did not live to carry it out
            await self._roll_back(guard, guard.evidence, guard.reason)
            return
        evidence = await asyncio.to_thread(self._look, guard, now, steady_s, run_id)
        await self._conclude(guard, evidence, now, ready)

    def _claim(self, now: dt.datetime, ready: bool) -> Guard | None:
        """The guard that this process is to look at, or None; a guard of a replaced version is closed."""
        with read_transaction(self._control.store) as connection:
            guard = watching_guard(connection)
            if guard is None:
                return None
            current = newest_applied(connection)
        # Somebody whose engine is ready knows more; without one, the end is still to be decided.
        if not ready and now < guard.until + dt.timedelta(seconds=PATIENCE_S):
            return None
        with write_transaction(self._control.store) as connection:
            if current.version != guard.version:
                reason = f"version {current.version} by {current.actor} is in force"
                close_guard(connection, guard.version, "ended", reason, now)
                return None
            return guard if take_lease(connection, guard.version, self._watcher, now, LEASE) else None

    def _look(self, guard: Guard, now: dt.datetime, steady_s: float, run_id: str | None) -> Evidence:
        """What the trace says as far as it is stored, with the time that was watched. Both clocks of one moment."""
        with read_transaction(self._control.store) as connection:
            stored = stored_until(connection, guard.opened_at, now, run_id, self._lag_s())
            read_until = max(guard.opened_at, min(stored, now, guard.until))
            found = measure(connection, guard.opened_at, read_until)
            missing = missing_trace(connection, guard.opened_at, read_until)
        stepped = (
            CLOCK_STEPPED in guard.evidence.problems or (stored - self._control.now()).total_seconds() > CLOCK_STEP_S
        )
        evidence = dataclasses.replace(
            guard.evidence,
            checked_at=now,
            read_until=read_until,
            checks=judge(guard.limits, _before(guard.evidence), found),
            problems=((CLOCK_STEPPED,) if stepped else ()) + missing,
        )
        return self._with_time(guard, evidence, now, steady_s, ready=run_id is not None)

    def _with_time(
        self, guard: Guard, evidence: Evidence, now: dt.datetime, steady_s: float, *, ready: bool
    ) -> Evidence:
        """Adds the time since this process's look before; a wall clock that stepped meanwhile is a problem."""
        last = self._last
        self._last = Look(guard.version, steady_s, now) if ready else None
        if last is None or last.version != guard.version:
            since_s = (now - guard.opened_at).total_seconds()
            first = guard.evidence.checked_at is None and 0 <= since_s <= FIRST_LOOK_S
            return dataclasses.replace(evidence, watched_s=since_s) if first else evidence
        passed_s = steady_s - last.steady_s
        if abs((now - last.wall).total_seconds() - passed_s) > CLOCK_STEP_S:
            evidence = with_problem(evidence, CLOCK_STEPPED)
        if passed_s > LONGEST_STEP_S:
            return evidence
        return dataclasses.replace(evidence, watched_s=evidence.watched_s + passed_s)

    async def _conclude(self, guard: Guard, evidence: Evidence, now: dt.datetime, ready: bool) -> None:
        broken = next((check for check in evidence.checks if check.verdict == "broken"), None)
        if broken is not None:
            await self._decide_to_roll_back(guard, evidence, broken.sentence())
            return
        # By the wall clock, or by the time that was really watched when that clock was set back.
        if now < guard.until and evidence.watched_s < 60 * guard.minutes:
            await asyncio.to_thread(self._keep, guard, evidence, "")
            return
        late_s = max((now - guard.until).total_seconds(), evidence.watched_s - 60 * guard.minutes)
        whole = evidence.read_until is not None and evidence.read_until >= guard.until
        if not (ready and whole) and late_s < PATIENCE_S:
            await asyncio.to_thread(self._keep, guard, evidence, "")
            return
        doubt = _doubt(guard, evidence, ready=ready, whole=whole)
        if doubt is None:
            await asyncio.to_thread(self._hold, guard, evidence, now)
        else:
            await self._decide_to_roll_back(guard, with_problem(evidence, doubt), f"it could not be decided: {doubt}")

    def _keep(self, guard: Guard, evidence: Evidence, reason: str) -> bool:
        with write_transaction(self._control.store) as connection:
            return keep_evidence(connection, guard.version, self._watcher, evidence, reason)

    def _hold(self, guard: Guard, evidence: Evidence, now: dt.datetime) -> None:
        with write_transaction(self._control.store) as connection:
            reason = "every limit held to the end"
            closed = close_guard(connection, guard.version, "held", reason, now, evidence)
            if closed:
                request = {"guard": guard.version, "minutes": guard.minutes}
                record_attempt(connection, "held", reason, request, GUARD_ACTOR, now)
        if closed:
            self._decided("held")

    async def _decide_to_roll_back(self, guard: Guard, evidence: Evidence, reason: str) -> None:
        if await asyncio.to_thread(self._keep, guard, evidence, reason):
            await self._roll_back(guard, evidence, reason)

    async def _roll_back(self, guard: Guard, evidence: Evidence, reason: str) -> None:
        """Carries the written decision out. With an engine that does not answer, in the store alone."""
        proposal = Proposal(
            guard.version,
            GUARD_ACTOR,
            f"guard of version {guard.version}: {reason}"[:MOST_NOTE],
            rollback=True,
            to_version=guard.parent,
            decision=Decision(reason, evidence),
        )
        try:
            if self._engine_run() is not None:
                await self._control.carry_out(proposal)
            else:
                await self._control.restore(proposal)
        except (NoGuard, StalePolicy):
            return  # somebody ended the guard, or replaced the version, which ends it too
        except (EngineError, EngineDidNotAnswer):
            await self._control.restore(proposal)
        except ChangeInProgress:
            self._last = None  # the next look carries it out
            return
        except (UnknownVersion, UnreadablePolicy) as error:  # after a downgrade, or by another hand in the store
            await asyncio.to_thread(self._give_up, guard, evidence, f"{reason}; it could not be taken back: {error}")
            return
        self._decided("rolled_back")

    def _give_up(self, guard: Guard, evidence: Evidence, reason: str) -> None:
        """Ends a guard whose version before cannot be used; its own version stays, and people are told."""
        with write_transaction(self._control.store) as connection:
            closed = close_guard(connection, guard.version, "ended", reason, self._control.now(), evidence)
        if closed:
            _log.error("the guard of policy version %d has ended and the version stays: %s", guard.version, reason)


def _doubt(guard: Guard, evidence: Evidence, *, ready: bool, whole: bool) -> str | None:
    """Why a trial that is over cannot be decided, or None. `whole`: all of it is stored."""
    if not ready:
        return "the engine was down at the end of the trial"
    if evidence.problems:
        return evidence.problems[0]
    if not whole:
        return "the recorder had not stored the whole trial"
    if evidence.watched_s < WATCHED_SHARE * 60 * guard.minutes:
        return (
            f"only {evidence.watched_s:.0f} of {60 * guard.minutes:.0f} s were watched; the service, the engine or "
            "the store was away for the rest"
        )
    few = next((check for check in evidence.checks if check.verdict == "too_few"), None)
    return None if few is None else few.sentence()


def _before(evidence: Evidence) -> Measures:
    """The hour before, as it was when the guard was opened; a measure without a limit is none."""
    found: dict[str, Any] = {check.name: Measure(check.before, check.before_samples) for check in evidence.checks}
    nothing = Measure(None, 0)
    return Measures(**{name: found.get(name, nothing) for name in Measures.__slots__})
