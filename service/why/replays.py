"""One recorded decision re-executed, from the checkpoint before it through its completion."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from scheduler.plans import LedgerBalances, ScheduledPlan
from service.why.errors import NotReplayable
from service.why.player import Completed, Decided, Event, Player
from service.why.stored_log import Calls, StoredLog


@dataclasses.dataclass(frozen=True, slots=True)
class Replayed:
    """`plan`: the decision, None where the replay found nothing to run. `ledgers_after`: behind its completion, None
    where the log ends before. `from_fence`: the checkpoint's last fence; `plans`: decisions replayed up to this one.
    """

    plan: ScheduledPlan | None
    ledgers_after: LedgerBalances | None
    from_fence: int
    plans: int


def replay_decision(log: StoredLog, fence: int) -> Replayed:
    """Re-execute the decision of `fence`. Raises NotReplayable and StoreError."""
    checkpoint = log.checkpoint_before(fence)
    player = Player.fast(checkpoint.state)
    events = _events(log, checkpoint, player)
    plans = 0
    for event in events:
        plans += isinstance(event, Decided)
        if isinstance(event, Decided) and event.fence == fence:
            after = None if event.plan is None else _ledgers_after(events, player, fence)
            return Replayed(event.plan, after, checkpoint.last_fence, plans)
        if isinstance(event, Decided) and event.plan is None:
            raise NotReplayable(f"the replay parted from the recorded run at fence {event.fence}, before this one")
    raise NotReplayable(
        f"the decision log ends before fence {fence}: the recorder has not got that far, or the run was lost there"
    )


def _ledgers_after(events: Iterator[Event], player: Player, fence: int) -> LedgerBalances | None:
    try:
        if any(isinstance(event, Completed) and event.fence == fence for event in events):
            ledgers: LedgerBalances = player.scheduler.ledgers
            return ledgers
    except NotReplayable:  # what is missing lies behind the decision
        return None
    return None


def _events(log: StoredLog, checkpoint: Any, player: Player) -> Iterator[Event]:
    for part in log.behind(checkpoint):
        for entry in part.entries if isinstance(part, Calls) else ():
            event = player.step(entry)
            if event is not None:
                yield event
