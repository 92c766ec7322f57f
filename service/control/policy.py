"""Live policy changes, shared by HTTP and the dashboard.

The order of one change, and what is left when the process dies in between:
1. one transaction checks the expected version and writes the new one as pending   -> nothing reached the engine;
2. the engine takes it over between two plans and acknowledges                     -> pending is refused at the
   next start, and that engine is gone;
3. one transaction marks it applied                                               -> it is in force.
When 2 fails or 3 cannot be written, the engine is first given the version in force back, together with the number
that it withdraws; then the pending one is marked refused. While it is pending no other process can start a change,
so the two cannot cross. The engine refuses a withdrawn number from then on, so a version that reaches it late, on
whichever connection, does not win. A withdrawal that the engine did not acknowledge is owed: `reconcile` repeats it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import sqlalchemy as sa
from opentelemetry.trace import NoOpTracer, Tracer

from scheduler.errors import InvalidPolicy
from scheduler.policy import CoefficientValue, PolicyConfig
from service.control.errors import ChangeInProgress, ChangeRefused, ControlError, EngineDidNotAnswer, InvalidChange
from service.control.guard_rows import settle_guards
from service.control.proposals import (
    ABANDONED_AFTER,
    Opened,
    Proposal,
    open_change,
    record_invalid,
    refuse_abandoned,
    restore_without_engine,
)
from service.control.start import resolve_initial_policy
from service.control.versions import (
    Outcome,
    PolicyVersion,
    State,
    list_versions,
    newest_applied,
    newest_number,
    record_attempt,
    refuse_withdrawn,
    settle,
    standing,
)
from service.ipc.errors import PolicyRejected
from service.store.engines import read_transaction, write_transaction
from service.store.errors import StoreError, StoreUnavailable

__all__ = ["Apply", "PolicyControl", "PolicyVersion", "resolve_initial_policy"]

PROPOSAL_SPAN = "helios.policy_proposal"
PROPOSAL_ATTRIBUTES = tuple(f"helios.policy.{name}" for name in ("actor", "expected_version", "rollback", "version"))
APPLY_TIMEOUT_S = 5.0
MARK_TRIES = 3
MARK_PAUSE_S = 0.2


class Apply(Protocol):
    """Gives the engine a version and returns the fence after which it holds; delivers in order.

    With `withdraws` the engine goes back from a higher version up to that number, which never became the policy in
    force. EngineClient.configure_policy does this.
    """

    def __call__(
        self, version: int, coefficients: dict[str, CoefficientValue], /, *, withdraws: int | None = None
    ) -> Awaitable[int]:
        """Raises EngineError when the engine did not take the version, or may not have."""


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class PolicyControl:
    """Reads and changes the policy of one running engine. One per process, on one event loop.

    Database work runs in threads. A change runs to its end even when its caller is cancelled.
    """

    def __init__(
        self,
        engine: sa.Engine,
        apply: Apply,
        *,
        apply_timeout_s: float = APPLY_TIMEOUT_S,
        mark_pause_s: float = MARK_PAUSE_S,
        now: Callable[[], dt.datetime] = _utc_now,
        tracer: Tracer | None = None,
    ) -> None:
        self._engine = engine
        self._apply = apply
        self._apply_timeout_s = apply_timeout_s
        self._mark_pause_s = mark_pause_s
        self._now = now
        self._tracer = tracer or NoOpTracer()
        self._turn = asyncio.Lock()
        self._changes: set[asyncio.Task[PolicyVersion]] = set()
        self._withdrawn: set[int] = set()
        self._owes_engine = False
        self._in_engine: int | None = None
        self._used: PolicyConfig | None = None

    @property
    def store(self) -> sa.Engine:
        """The store whose policy this is."""
        return self._engine

    def now(self) -> dt.datetime:
        """The wall clock that versions and guards are dated by, aware UTC."""
        return self._now()

    @property
    def used(self) -> PolicyConfig | None:
        """The policy that this process gave the engine or found in it last, without a look into the store; or None."""
        return self._used

    @property
    def owes_engine(self) -> bool:
        """Whether the engine may still use a withdrawn version; `reconcile` settles it."""
        return self._owes_engine

    async def current(self) -> PolicyVersion:
        """The version in force. Raises NoPolicy, UnreadablePolicy, StoreError."""
        if self._withdrawn:
            async with self._turn:
                await self._tell_store_of_withdrawn()
        return await asyncio.to_thread(self._read, newest_applied)

    async def history(self, limit: int = 100) -> list[PolicyVersion]:
        """The newest versions, newest first, refused ones too; unreadable ones are left out. Raises StoreError."""
        return await asyncio.to_thread(self._read, lambda connection: list_versions(connection, limit))

    async def change(
        self,
        *,
        expected_version: int,
        preset: str | None = None,
        coefficients: Mapping[str, Any] | None = None,
        actor: str,
        note: str = "",
        end_guard: bool = False,
    ) -> PolicyVersion:
        """Takes the preset first, then the coefficients; returns the new version once the engine uses it.

        Unchanged values make no version and return the one in force. A version that a guard watches is replaced with
        `end_guard` alone, else GuardWatches is raised. Raises InvalidPolicy, InvalidChange, StalePolicy,
        ChangeInProgress, EngineDidNotAnswer, ChangeRefused, StoreError and the engine client's errors; after any of
        them the policy in force is what it was.
        """
        given = {} if coefficients is None else coefficients
        return await self.carry_out(Proposal(expected_version, actor, note, preset, given, end_guard=end_guard))

    async def rollback(
        self, *, expected_version: int, to_version: int | None = None, actor: str, note: str = ""
    ) -> PolicyVersion:
        """A new version with an older one's values; without `to_version` those of the current one's parent.

        Raises UnknownVersion, and what `change` raises.
        """
        return await self.carry_out(Proposal(expected_version, actor, note, rollback=True, to_version=to_version))

    async def reconcile(self, engine_version: int) -> bool:
        """Makes sure that an engine that reported `engine_version` uses the one in force; True when it was told.

        For when an engine connects, and while `owes_engine`. It is told even when it reports the right version, if a
        newer one was withdrawn: that one may still be on its way. Raises ChangeInProgress while another process's
        change is under way, what `apply` raises, EngineDidNotAnswer, NoPolicy, UnreadablePolicy, StoreError.
        """
        async with self._turn:
            await self._tell_store_of_withdrawn()
            found = await asyncio.to_thread(self._read, standing)
            if found.waits_since is not None and self._now() - found.waits_since > ABANDONED_AFTER:
                await asyncio.to_thread(refuse_abandoned, self._engine, self._now())
                found = await asyncio.to_thread(self._read, standing)
            if found.waits_since is not None:
                raise ChangeInProgress("another change waits for the engine; try again in a moment")
            told = found.withdrawn is not None or found.current.version != engine_version
            if told:
                await self._hand_over(found.current, found.withdrawn)
            self._owes_engine = False
            self._note(found.current)
            return told

    async def follow(self) -> bool:
        """Gives the engine the version in force when another process applied it; True when it was told.

        One small read when there is nothing to do, so that it can be asked each second. Telling an engine what another
        of its services has told it already changes nothing. Raises PolicyRejected when that service was faster with
        a newer version still, and what `reconcile` raises.
        """
        known = self._in_engine
        if known is None or known == await asyncio.to_thread(self._read, newest_number):
            return False
        async with self._turn:
            current = await asyncio.to_thread(self._read, newest_applied)
            newer = self._in_engine is None or current.version > self._in_engine
            if newer:
                await self._hand_over(current)
        # One that it knew has been withdrawn: the engine goes back.
        return newer or (current.version != self._in_engine and await self.reconcile(self._in_engine or 0))

    async def restore(self, proposal: Proposal) -> PolicyVersion:
        """A guard's decision without the engine, which is told as soon as it answers. Raises what `rollback` raises."""
        async with self._turn:
            made = await asyncio.to_thread(restore_without_engine, self._engine, proposal, self._now())
            self._owes_engine = True
            return made

    async def close(self) -> None:
        """Waits for changes under way."""
        await asyncio.gather(*self._changes, return_exceptions=True)

    async def carry_out(self, proposal: Proposal) -> PolicyVersion:
        """Any proposal, to its end; `change` and `rollback` make the common ones. Raises what they raise."""
        task = asyncio.create_task(self._traced(proposal))
        self._changes.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def _traced(self, proposal: Proposal) -> PolicyVersion:
        """The change as a span: who wants it, on what it builds, and which version came of it, or which error."""
        actor, expected, rollback, made = PROPOSAL_ATTRIBUTES
        wanted: dict[str, str | int] = {
            actor: str(proposal.actor),
            expected: proposal.expected_version,
            rollback: proposal.rollback,
        }
        with self._tracer.start_as_current_span(PROPOSAL_SPAN, attributes=wanted) as span:
            version = await self._change_in_turn(proposal)
            span.set_attribute(made, version.version)
            return version

    def _forget(self, task: asyncio.Task[PolicyVersion]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may be gone; the audit has the outcome

    async def _change_in_turn(self, proposal: Proposal) -> PolicyVersion:
        try:
            tidy = proposal.checked()
        except (InvalidPolicy, InvalidChange) as error:
            with contextlib.suppress(StoreError):
                await asyncio.to_thread(record_invalid, self._engine, proposal, str(error), self._now())
            raise
        async with self._turn:
            withdrawn = frozenset(self._withdrawn)
            opened = await asyncio.to_thread(open_change, self._engine, tidy, withdrawn, self._now())
            self._withdrawn -= withdrawn
            if opened.pending is None:
                return opened.current
            await self._try_engine(opened, opened.pending, tidy)
            return await self._confirm(opened, opened.pending, tidy)

    async def _try_engine(self, opened: Opened, pending: PolicyVersion, proposal: Proposal) -> None:
        try:
            await self._hand_over(pending)
        except Exception as error:
            if not isinstance(error, PolicyRejected):  # the engine may have it, or get it late
                await self._give_back(opened.current, pending)
            await self._refuse(pending, proposal, str(error))
            raise

    async def _confirm(self, opened: Opened, pending: PolicyVersion, proposal: Proposal) -> PolicyVersion:
        try:
            state, at = await self._mark(pending, "applied", proposal, "")
        except StoreError as error:
            back = await self._give_back(opened.current, pending)
            await self._refuse(pending, proposal, "the store could not be written", tries=1)
            holds = "is in force again" if back else "is in force again as soon as the engine answers"
            raise StoreUnavailable(
                f"the change was withdrawn, since the store could not be written; version {opened.current.version} "
                f"{holds} ({error})"
            ) from error
        if state != "applied":
            await self._give_back_newest(pending)
            raise ChangeRefused(
                f"version {pending.version} was withdrawn by a restart while the engine took it over; look at the "
                "policy in force and try again"
            )
        return dataclasses.replace(pending, state="applied", applied_at=at)

    async def _hand_over(self, version: PolicyVersion, withdraws: int | None = None) -> int:
        """The fence after which the engine uses the version. Raises EngineDidNotAnswer and `apply`'s errors."""
        values = version.config.as_dict()
        try:
            async with asyncio.timeout(self._apply_timeout_s):
                told = {} if withdraws is None else {"withdraws": withdraws}
                fence = await self._apply(version.version, values, **told)
                self._note(version)
                return fence
        except TimeoutError as error:
            raise EngineDidNotAnswer(
                f"the engine did not acknowledge version {version.version} within {self._apply_timeout_s:g} s; "
                "the policy in force is unchanged. Look at /health/ready and try again"
            ) from error

    def _note(self, version: PolicyVersion) -> None:
        """The engine has this version."""
        self._in_engine, self._used = version.version, version.config

    async def _give_back(self, current: PolicyVersion, pending: PolicyVersion) -> bool:
        """Gives the engine the version in force instead of the pending one; owed when it does not answer."""
        try:
            await self._hand_over(current, pending.version)
        except Exception:  # whatever keeps the engine from answering, the first error is the one to report
            self._owes_engine = True
            return False
        return True

    async def _give_back_newest(self, pending: PolicyVersion) -> None:
        """Like `_give_back`, when others settled the pending version and may have changed the policy since."""
        try:
            current = await asyncio.to_thread(self._read, newest_applied)
        except (ControlError, StoreError):
            self._owes_engine = True
        else:
            await self._give_back(current, pending)

    async def _refuse(
        self, pending: PolicyVersion, proposal: Proposal, reason: str, *, tries: int = MARK_TRIES
    ) -> None:
        try:
            await self._mark(pending, "refused", proposal, reason, tries)
        except StoreError:
            self._withdrawn.add(pending.version)

    async def _mark(
        self, pending: PolicyVersion, state: State, proposal: Proposal, reason: str, tries: int = MARK_TRIES
    ) -> tuple[State, dt.datetime]:
        """Settles the pending version; the state that it has then, and when. Raises StoreError after `tries`."""

        def write() -> tuple[State, dt.datetime]:
            now = self._now()
            with write_transaction(self._engine) as connection:
                found = settle(connection, pending.version, state, now)
                if found == "applied":
                    settle_guards(connection, pending, now, terms=proposal.guard, decision=proposal.decision)
                outcome: Outcome = "applied" if found == "applied" else "refused"
                record_attempt(connection, outcome, reason, proposal.request(), proposal.actor, now)
            return found, now

        for _ in range(tries - 1):
            with contextlib.suppress(StoreError):
                return await asyncio.to_thread(write)
            await asyncio.sleep(self._mark_pause_s)
        return await asyncio.to_thread(write)

    async def _tell_store_of_withdrawn(self) -> None:
        """Marks versions refused that the store did not hear of. The caller holds the turn."""
        withdrawn = frozenset(self._withdrawn)

        def write() -> None:
            with write_transaction(self._engine) as connection:
                refuse_withdrawn(connection, withdrawn)

        if withdrawn:
            await asyncio.to_thread(write)
            self._withdrawn -= withdrawn

    def _read(self, query: Callable[[sa.Connection], Any]) -> Any:
        with read_transaction(self._engine) as connection:
            return query(connection)
