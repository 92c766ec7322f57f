"""One recorded decision re-executed, from the checkpoint before it through its completion."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from scheduler.plans import LedgerBalances, ScheduledPlan
from service.journal.catalogs import catalog_digest
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


def _nobody(_done: int) -> None:
    pass


def decisions_to_replay(log: StoredLog, fence: int) -> int:
    """How many decisions lie between the checkpoint and this one, which is counted; 0 where it cannot be replayed."""
    try:
        return fence - log.checkpoint_before(fence).last_fence
    except NotReplayable:
        return 0


def replay_decision(
    log: StoredLog, fence: int, digest: str | None = None, told: Callable[[int], None] = _nobody
) -> Replayed:
    """Re-execute the decision of `fence`. Raises NotReplayable and StoreError.

    `digest`: of the catalog that the run says it had, None where that is unknown. `told` gets how many decisions were
    replayed so far.
    """
    checkpoint = log.checkpoint_before(fence)
    player = Player.fast(checkpoint.state)
    found = catalog_digest(player.scheduler.catalog.shapes)
    if digest is not None and digest != found:
        raise NotReplayable(f"the run had the catalog {digest[:12]}, and its decision log is of catalog {found[:12]}")
    events = _events(log, checkpoint, player)
    plans = 0
    for event in events:
        plans += isinstance(event, Decided)
        told(plans)
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
