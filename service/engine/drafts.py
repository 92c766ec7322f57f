"""Which drafts the engine offers to the scheduler: copies of the request's own tokens, or the draft head's.

An offer of copies stands in for learned drafts, so with a draft head the better of the two is taken, by a running
mean of the drafts accepted per round. Copies begin with the best mean there is, so that each request tries them; a
completion after which they are not even looked for brings their mean back a little, so that they are tried again when
the text changes. Whoever has no right copy to show waits for a trial (copy_trials).

An offer that the next round does not take is withdrawn: while it stands nothing may be queued behind that round.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.plans import PlanLane
from service.engine.copy_trials import LEAST_COPIES
from service.engine.core import Core
from service.engine.requests import EngineRequest

COPY = "copy"
LEARNED = "learned"
MEMORY_ROUNDS = 4
"""A round weighs 1/4 in the running mean: few tries suffice to leave copies that fail."""
RECOVERY = 1 / 256


def offer_copies(core: Core, lanes: Sequence[PlanLane]) -> None:
    """After a completion: offer what each of its decoding requests could copy in its next round.

    A request with another lane in flight gets no offer, since what suits its next round is not known yet; the next
    frame waits for that one then.
    """
    if not core.device.limits.draft_tokens:
        return
    core.copy_trials.completed()
    busy = {lane.handle for frame in core.in_flight for lane in frame.plan.lanes}
    for lane in lanes:
        request = core.request_of(lane)
        if request is None or not request.decodes:
            continue
        request.offered_copies = False  # an offer stands until its request's next completion
        if not _copies_pay(core, request):
            continue
        count = core.device.copy_proposals(lane.handle.slot)
        if count and lane.handle in busy:
            core.copy_trials.holds = True
        elif count:
            core.scheduler.offer_proposals(lane.handle, COPY, count)
            request.offered_copies = True


def settle_offers(core: Core, lanes: Sequence[PlanLane], requests: Sequence[EngineRequest | None]) -> None:
    """After a commit of `lanes`, each one's request beside it: withdraw the offers that the plan passed over."""
    core.copy_trials.holds = False
    taken, passed = False, False
    for lane, request in zip(lanes, requests, strict=True):
        if request is None or not request.offered_copies:
            continue
        if lane.proposal_source == COPY:
            taken = True
        elif request.holds(lane) and request.decodes:
            core.scheduler.offer_proposals(lane.handle, COPY, 0)
            request.offered_copies, request.copied_well, passed = False, False, True
    if passed and not taken:
        core.copy_trials.failed()


def note_round(core: Core, request: EngineRequest, source: str, accepted: int, offered: int) -> None:
    """A round of the request with `offered` verified drafts from `source` had `accepted` of them right.

    A round that verified none, since a device gave the lane its one row, says nothing of them.
    """
    if not offered:
        return
    if source == COPY:
        request.copy_mean = _moved(min(request.copy_mean, core.device.limits.draft_tokens), accepted)
        request.copied_well = accepted > 0
    else:
        request.learned_mean = _moved(request.learned_mean, accepted)


def note_copies(core: Core, rounds: int, accepted: int) -> None:
    """A frame verified copies of `rounds` requests, none or more, of which `accepted` were right."""
    if rounds:
        core.copy_trials.verified(rounds, accepted)


def _copies_pay(core: Core, request: EngineRequest) -> bool:
    """Whether copies are worth an offer, by the request's own rounds or to learn it."""
    limits = core.device.limits
    learned = request.learned_mean if limits.learned_drafts else 0.0
    if request.copy_mean >= max(LEAST_COPIES, learned):
        return request.copied_well or core.copy_trials.due
    request.copy_mean += limits.draft_tokens * RECOVERY
    return False


def _moved(mean: float, accepted: int) -> float:
    return mean + (accepted - mean) / MEMORY_ROUNDS
