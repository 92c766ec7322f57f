"""Small oracle states put into RequestScheduler's arrays."""

from __future__ import annotations

import math

from scheduler import Catalog, RequestScheduler, layout
from scheduler.plans import ScheduledPlan
from scheduler.prompts import Prompt, Window
from scheduler.records import RequestHandle, RequestSpec
from scheduler.reference.oracle import OracleRequest, OracleState
from scheduler.shapes import GraphKind
from scheduler.state import Tenant
from tests.scheduler.oracle_states import MS, NOW, PROMPT

SLOTS = 8
STAGES = {
    "init": layout.INIT,
    "restore": layout.RESTORE,
    "vision": layout.VISION,
    "prefill": layout.PREFILL,
    "decode": layout.DECODE,
    "snapshot": layout.SNAPSHOT,
    "terminal": layout.TERMINAL,
}


def fast_scheduler(state: OracleState) -> RequestScheduler:
    """A scheduler in this state."""
    catalog = Catalog(state.shapes)
    verification = f"fixed:{state.fixed_width}" if state.fixed_width else "adaptive"
    scheduler = RequestScheduler(catalog, state.policy, SLOTS, verification=verification)
    scheduler.advance_to(NOW)
    scheduler.set_resources(1 << 30, 1)
    for shape, duration_ns in zip(state.shapes, state.durations_ns, strict=True):
        if duration_ns:
            catalog.observe(shape, duration_ns, NOW)
    for request in state.requests:
        _place(scheduler, request)
    scheduler._state.rebuild_acceptance(0, SLOTS)
    return scheduler


def fast_plan(state: OracleState) -> ScheduledPlan | None:
    """The scheduler's choice."""
    return fast_scheduler(state).plan()


def _place(scheduler: RequestScheduler, r: OracleRequest) -> None:
    inner = scheduler._state
    spec = RequestSpec(r.request_id, PROMPT, r.limit + 1, PROMPT + r.limit + 1, scored=r.scored)
    images = r.chain.count(GraphKind.VISION)
    windows = (Window(0, 0), Window(PROMPT, images)) if r.stage == "snapshot" else (Window(0, images),)
    inner.tenants[r.slot] = Tenant(RequestHandle(r.slot, 1), spec, Prompt(PROMPT, windows=windows))
    inner.slot_of[r.request_id] = r.slot
    record = inner.slots[r.slot]
    record["stage"] = STAGES[r.stage]
    record["generation"], record["admitted"] = 1, 1 + r.slot
    record["arrived_ns"] = NOW - round(r.waited_ms * MS)
    record["scored"] = r.scored
    record["prompt_tokens"] = PROMPT
    record["consumed"] = PROMPT - r.remaining_prompt
    record["emitted"] = 0 if r.remaining_prompt else 1
    record["output_limit"] = r.limit + 1
    record["source"], record["drafts"] = layout.LEARNED, layout.UNBOUNDED
    record["images_left"] = images + (r.stage == "vision")
    record["window"] = bool(r.chain) and r.stage == "snapshot"
    record["window_images"] = images
    record["last_served_tick"] = r.last_served_tick
    record["last_visible_ns"] = -1 if r.age_ms is None else NOW - round(r.age_ms * MS)
    record["terminal_since_ns"] = NOW - round((r.age_ms or 0) * MS)
    record["token_memory"], record["delivery_memory"] = r.token_memory, r.delivery_memory or math.nan
    inner.restop(r.slot)
    inner.views_stale = True
    depths = scheduler.draft_capacity
    for estimator, means in ((layout.ACCEPTANCE, r.acceptance), (layout.FORECAST, r.forecast)):
        estimates = inner.acceptance.estimates[r.slot, layout.LEARNED, estimator]
        estimates[:, layout.MEAN], estimates[:, layout.WEIGHT] = means[:depths], 2.0
