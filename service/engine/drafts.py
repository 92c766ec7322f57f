"""Which drafts the engine offers to the scheduler: copies of the request's own tokens, or the draft head's.

An offer of copies stands in for learned drafts, so with a draft head the better of the two is taken, by a running
mean of the drafts accepted per round. Copies begin with the best mean there is, so that each request tries them; a
match that is passed over brings its mean back a little, so that they are tried again when the text changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.plans import PlanLane
from service.engine.core import Core
from service.engine.requests import EngineRequest

COPY = "copy"
LEARNED = "learned"
MEMORY_ROUNDS = 4
"""A round weighs 1/4 in the running mean: few tries suffice to leave copies that fail."""
RECOVERY = 1 / 256


def offer_copies(core: Core, lanes: Sequence[PlanLane]) -> None:
    """After a completion: offer what each of its decoding requests could copy in its next round.

    A request with another lane in flight is left alone: what suits its next round is not known yet.
    """
    if not core.device.limits.draft_tokens:
        return
    busy = {lane.handle for frame in core.in_flight for lane in frame.plan.lanes}
    for lane in lanes:
        request = core.request_of(lane)
        if request is None or not request.decodes or lane.handle in busy:
            continue
        count = core.device.copy_proposals(lane.handle.slot)
        if count and _copies_pay(core, request):
            core.scheduler.offer_proposals(lane.handle, COPY, count)


def note_round(core: Core, request: EngineRequest, source: str, accepted: int, offered: int) -> None:
    """A round of the request with `offered` verified drafts from `source` had `accepted` of them right.

    A round that verified none, since a device gave the lane its one row, says nothing of them.
    """
    if not offered:
        return
    if source == COPY:
        request.copy_mean = _moved(min(request.copy_mean, core.device.limits.draft_tokens), accepted)
    else:
        request.learned_mean = _moved(request.learned_mean, accepted)


def _copies_pay(core: Core, request: EngineRequest) -> bool:
    limits = core.device.limits
    if not limits.learned_drafts or request.copy_mean >= request.learned_mean:
        return True
    request.copy_mean += limits.draft_tokens * RECOVERY
    return False


def _moved(mean: float, accepted: int) -> float:
    return mean + (accepted - mean) / MEMORY_ROUNDS
