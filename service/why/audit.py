"""A range of recorded decisions derived again: by the fast scheduler, by its slow twin, and compared with the rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

from scheduler.errors import InvalidCheckpoint
from scheduler.plans import PLAN_FIELDS, ScheduledPlan
from service.store.queries import PlanDetail
from service.why.columns import decision_differences
from service.why.errors import NotReplayable
from service.why.player import Decided, Player
from service.why.recorded import FenceRange, last_fence, recorded_plans
from service.why.states import state_difference
from service.why.stored_log import Calls, Checkpoint, StoredLog

BLOCK_FENCES = 200
"""Plans whose rows are read at a time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that did not come out the same. `between`: replay and rows, replay and reference, or states."""

    run_id: str
    fence: int
    between: str
    details: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Skipped:
    """Decisions that cannot be re-executed, and why. `last_fence` None: to the end of what was asked for."""

    run_id: str
    first_fence: int
    last_fence: int | None
    why: str


@dataclasses.dataclass(slots=True)
class Audit:
    """`decisions`: derived again by both schedulers and found the same as recorded. `unrecorded`: derived again and
    the same in both, but the store has no row of them (any more). `checkpoints`: states that came out the same.
    """

    decisions: int = 0
    unrecorded: int = 0
    checkpoints: int = 0
    skipped: list[Skipped] = dataclasses.field(default_factory=list)
    difference: Difference | None = None


Told = Callable[[int], None]


class Auditor:
    """Audits ranges of one store, at most `limit` decisions in all. `told` gets the number of decisions so far."""

    def __init__(self, engine: sa.Engine, limit: int | None = None, told: Told = lambda _count: None) -> None:
        self._engine = engine
        self._limit = limit
        self._told = told
        self.found = Audit()

    def run(self, wanted: FenceRange) -> None:
        """Audit one range; stops at the first difference. Raises StoreError."""
        log, fence = StoredLog(self._engine, wanted.run_id), wanted.first
        try:
            checkpoint: Checkpoint | None = log.checkpoint_before(fence)
        except NotReplayable as error:
            checkpoint = log.next_checkpoint(-1)
            self._skip(wanted, fence, checkpoint, str(error))
        while checkpoint is not None and checkpoint.last_fence < wanted.last and not self.over:
            pass_ = _Pass(self, log, checkpoint, wanted)
            try:
                pass_.go()
                self._note_end(wanted, pass_.fence)
                return
            except NotReplayable as error:
                checkpoint = log.next_checkpoint(pass_.call)
                self._skip(wanted, max(pass_.fence + 1, wanted.first), checkpoint, str(error))

    def _note_end(self, wanted: FenceRange, fence: int) -> None:
        """Say which recorded plans lie behind the log's end."""
        if self.over or fence >= wanted.last:
            return
        last = last_fence(self._engine, wanted)
        if last is not None and last > max(fence, wanted.first - 1):
            why = "the decision log ends there: the recorder has not got further, or its end was lost"
            self.found.skipped.append(Skipped(wanted.run_id, max(fence + 1, wanted.first), last, why))

    @property
    def over(self) -> bool:
        """A difference was found, or the limit is reached."""
        done = self.found.decisions + self.found.unrecorded
        return self.found.difference is not None or (self._limit is not None and done >= self._limit)

    def _skip(self, wanted: FenceRange, fence: int, after: Checkpoint | None, why: str) -> None:
        last = None if after is None else min(after.last_fence, wanted.last)
        if last is None or last >= fence:
            self.found.skipped.append(Skipped(wanted.run_id, fence, last, why))


class _Pass:
    """From one checkpoint to the end of the range, or to where the log has a hole. `fence`, `call`: how far it got."""

    def __init__(self, auditor: Auditor, log: StoredLog, checkpoint: Checkpoint, wanted: FenceRange) -> None:
        self._auditor, self._log, self._wanted = auditor, log, wanted
        self._checkpoint = checkpoint
        self.fence, self.call = checkpoint.last_fence, checkpoint.call
        self._rows: dict[int, PlanDetail] = {}
        self._rows_end = 0

    def go(self) -> None:
        state = self._checkpoint.state
        players = Player.fast(state), Player.reference(state)
        for part in self._log.behind(self._checkpoint):
            if isinstance(part, Calls):
                done = all(self._entry(players, entry) for entry in part.entries)
                self.call = part.first_call + len(part.entries) - 1
            else:
                done = self._state(players[0], part)
                self.call = part.call
            if not done:
                return

    def _entry(self, players: tuple[Player, Player], entry: Any) -> bool:
        """Give one entry to both; False at the end of what was asked for, or at a difference."""
        fast, plain = (player.step(entry) for player in players)
        if not isinstance(fast, Decided):
            return True
        assert isinstance(plain, Decided)
        self.fence = fast.fence
        if fast.fence < self._wanted.first:
            if fast.plan is None:
                raise NotReplayable(f"the replay parted from the recorded run at fence {fast.fence}")
            return True
        if fast.fence > self._wanted.last or not self._compare(fast, plain):
            return False
        return not self._auditor.over

    def _compare(self, fast: Decided, plain: Decided) -> bool:
        found = self._auditor.found
        recorded = self._recorded(fast.fence)
        if recorded is not None:
            details = decision_differences(fast.plan, recorded)
            if details:
                return self._differ("the rows and the replay", details)
        details = list(_plan_differences(fast.plan, plain.plan))
        if details:
            return self._differ("the replay and the reference", details)
        if recorded is None:
            found.unrecorded += 1
        else:
            found.decisions += 1
        self._auditor._told(found.decisions + found.unrecorded)
        return fast.plan is not None

    def _state(self, fast: Player, checkpoint: Checkpoint) -> bool:
        if checkpoint.last_fence + 1 < self._wanted.first:
            return True
        try:
            different = state_difference(fast.scheduler.checkpoint(), checkpoint.state)
        except InvalidCheckpoint as error:
            raise NotReplayable(f"the checkpoint behind fence {checkpoint.last_fence} is damaged: {error}") from error
        if different is not None:
            return self._differ("the replay and the checkpoint behind this fence", [different])
        self._auditor.found.checkpoints += 1
        return True

    def _differ(self, between: str, details: list[str]) -> bool:
        self._auditor.found.difference = Difference(self._wanted.run_id, self.fence, between, details)
        return False

    def _recorded(self, fence: int) -> PlanDetail | None:
        if fence >= self._rows_end:
            self._rows_end = fence + BLOCK_FENCES
            last = min(self._rows_end - 1, self._wanted.last)
            self._rows = recorded_plans(self._auditor._engine, self._wanted.run_id, fence, last)
        return self._rows.get(fence)


def _plan_differences(fast: ScheduledPlan | None, plain: ScheduledPlan | None) -> Iterator[str]:
    """repr() tells floats apart by bits, -0.0 from 0.0 and whole numbers from floats."""
    if fast is None or plain is None:
        if fast is not plain:
            yield "plan: " + ("none" if fast is None else "one") + " replayed, " + ("none" if plain is None else "one")
        return
    for name in PLAN_FIELDS:
        one, two = getattr(fast, name), getattr(plain, name)
        if repr(one) != repr(two):
            yield f"{name}: {one!r} replayed, {two!r} by the reference"
