"""One request through a scheduler of its own before serving, so that no call of a kernel is a process's first.

numba resolves a kernel's argument types at its first call, and imports modules for it: the first admission took 13 ms
and the first plan call 0.8 to 1.4 ms, against 0.05 and 0.1 ms for the next ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from scheduler.capacity import DEFAULT_COMPLETION_TOKEN_CAPACITY
from scheduler.catalog import Catalog
from scheduler.plans import ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import CompletionRecord, ExecutionTiming, GeneratedToken, RequestSpec
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import Allocation, GraphShape

_STEP_NS = 1_000_000
_MOST_PLANS = 32


def rehearse(shapes: Iterable[GraphShape]) -> int:
    """Plan, commit, complete and publish until a short request has ended; returns how many plans that took.

    Raises InvalidCatalog or Unservable when these shapes serve nobody.
    """
    catalog = Catalog(tuple(shapes))
    widest = max(shape.target_width for shape in catalog.shapes)
    scheduler = RequestScheduler(
        catalog,
        PolicyConfig.balanced(),
        request_slots=2,
        completion_token_capacity=max(DEFAULT_COMPLETION_TOKEN_CAPACITY, widest),
    )
    scheduler.set_resources(_MOST_PLANS, 2)
    scheduler.advance_to(_STEP_NS)
    handle = scheduler.admit(RequestSpec("rehearsal", prompt_tokens=2, max_output_tokens=4, context_capacity=6))
    plans = 0
    while plans < _MOST_PLANS and (plan := scheduler.plan()) is not None:
        plans += 1
        scheduler.commit(plan, plans)
        scheduler.advance_to(scheduler.now_ns + _STEP_NS)
        if _complete(scheduler, plan, plans) and scheduler.is_resident(handle):
            scheduler.published_outputs((handle,), plans)
    return plans


def _complete(scheduler: RequestScheduler, plan: ScheduledPlan, fence: int) -> list[GeneratedToken]:
    """Each lane has consumed its prompt tokens, and emitted one token where it may."""
    records = [CompletionRecord(lane.handle, lane.prompt_tokens, (0,) * min(1, lane.ceiling)) for lane in plan.lanes]
    timing = ExecutionTiming((_STEP_NS,), _STEP_NS)
    if plan.shape.allocation is Allocation.DEVICE and plan.shape.draft_depth:
        confidence = np.zeros((2, scheduler.request_slots, scheduler.draft_capacity), np.float32)
        return scheduler.complete_packed_round(fence, records, timing, confidence)
    return scheduler.complete(fence, records, timing)
