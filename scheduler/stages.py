"""How a request moves from stage to stage (specification "Requests", S5, S10). One slot at a time, on its record.

Callers have counted the completed lane already: `in_flight` and `consumed` are those after it.
"""

from __future__ import annotations

import math

import numpy as np

from scheduler import checkpoints, layout
from scheduler.admission import draft_source, output_limit
from scheduler.records import RequestHandle
from scheduler.shapes import GraphKind
from scheduler.state import SchedulerState, Tenant


def _tenant(state: SchedulerState, number: int) -> Tenant:
    tenant = state.tenants[number]
    assert tenant is not None, "a submitted lane keeps its slot"
    return tenant


def follow(state: SchedulerState, number: int) -> None:
    """What comes after INIT, RESTORE, VISION, a snapshot or external restoration."""
    slot = state.slots[number]
    if slot["images_left"] > 0:
        slot["stage"] = layout.VISION
    else:
        slot["stage"] = layout.PREFILL if slot["consumed"] < slot["prompt_tokens"] else layout.DECODE


def after_state_graph(state: SchedulerState, number: int) -> None:
    """A lane of INIT, RESTORE, VISION, SNAPSHOT or TERMINAL_SNAPSHOT has completed."""
    slot = state.slots[number]
    stage = int(slot["stage"])
    if stage == layout.TERMINAL:
        tenant = _tenant(state, number)
        if tenant.finished:
            state.unpublished_snapshots[tenant.spec.request_id] = None
        state.release(number)
        return
    if stage == layout.VISION:
        slot["images_left"] -= 1
    if stage == layout.SNAPSHOT and slot["window"] == 1:
        _next_window(state, number)
        return
    follow(state, number)


def _next_window(state: SchedulerState, number: int) -> None:
    """The state at a window's end is kept; restoring it binds a fresh generation."""
    slot, tenant = state.slots[number], _tenant(state, number)
    slot["generation"] += 1
    slot["images_left"] = slot["window_images"]
    slot["window"] = slot["window_images"] = 0
    slot["stage"] = layout.RESTORE
    tenant.handle = RequestHandle(number, int(slot["generation"]))


def after_prefill(state: SchedulerState, number: int) -> None:
    """A prompt lane has completed and its request goes on: at a stop it may be captured, then what follows."""
    slot, tenant = state.slots[number], _tenant(state, number)
    prompt, consumed = tenant.prompt, int(slot["consumed"])
    following = prompt.next_window
    if following is not None and consumed == following.first_token:
        prompt.window += 1
        slot["window"], slot["window_images"] = 1, following.images
        slot["stage"] = layout.SNAPSHOT
    elif (consumed == prompt.anchor or consumed in prompt.extras) and captured(state, number):
        slot["stage"] = layout.SNAPSHOT
    else:
        slot["stage"] = layout.PREFILL if consumed < prompt.tokens else layout.DECODE
    state.restop(number)


def captured(state: SchedulerState, number: int) -> bool:
    """Whether the cut that a slot has reached gets its snapshot (S10)."""
    slots = state.slots
    guards = sum(
        1
        for i, tenant in enumerate(state.tenants)
        if tenant is not None and slots[i]["cancelled"] == 0 and tenant.prompt.anchor > slots[i]["consumed"]
    )
    fresh = state.catalog.any_fresh(GraphKind.SNAPSHOT, state.now_ns)
    prompt = _tenant(state, number).prompt
    return checkpoints.captures(
        prompt, int(slots[number]["consumed"]), state.resources.free_snapshot_rows, guards, fresh
    )


def end_normally(state: SchedulerState, number: int) -> None:
    """The request's answer is complete: TERMINAL if its capture is worth it, else the slot is free (S5).

    With another lane in flight a slot that goes to no snapshot is kept until that lane has completed.
    """
    slot = state.slots[number]
    if slot["retiring"] == 1 or _capture_pays(state, slot):
        if slot["retiring"] == 0:
            slot["terminal_since_ns"] = state.now_ns
        slot["retiring"] = 0
        _tenant(state, number).finished = True
        _enter_terminal(state, number)
    else:
        drop(state, number)


def _capture_pays(state: SchedulerState, slot: np.void) -> bool:
    if not state.can.has(GraphKind.TERMINAL_SNAPSHOT):
        return False
    smallest_ns = state.catalog.smallest_known_ns(GraphKind.TERMINAL_SNAPSHOT)
    return smallest_ns == 0 or bool(slot["decode_earned_ms"] >= smallest_ns / 1e6)


def retire(state: SchedulerState, number: int) -> None:
    """A preempted request whose last frame has completed."""
    state.slots[number]["retiring"] = 0
    _enter_terminal(state, number)


def _enter_terminal(state: SchedulerState, number: int) -> None:
    state.slots[number]["stage"] = layout.TERMINAL


def drop(state: SchedulerState, number: int) -> None:
    """The request is over: its slot is free, or kept unselected until its last frame completes."""
    slot = state.slots[number]
    if slot["in_flight"] > 0:
        slot["cancelled"] = 1
    else:
        state.release(number)


def set_offer(state: SchedulerState, number: int, count: int) -> None:
    """`count` copy drafts stand for the request from now on; 0: none (S2)."""
    slot, spec = state.slots[number], _tenant(state, number).spec
    slot["source"], slot["drafts"] = draft_source(spec, count)
    slot["feedback"] = int(spec.grammar or spec.host_stop or spec.host_fed or count > 0)
    state.rebuild_acceptance(number, number + 1)


def fill_slot(state: SchedulerState, tenant: Tenant) -> None:
    """A newcomer's record, in the slot and stage that it was put in; then its first estimates, memory and view."""
    number, spec, prompt = tenant.handle.slot, tenant.spec, tenant.prompt
    slot, page_tokens = state.slots[number], state.resources.page_tokens
    state.admissions += 1
    slot["scored"] = int(spec.scored)
    slot["prompt_tokens"] = spec.prompt_tokens
    slot["consumed"] = spec.cached_tokens
    slot["output_limit"] = output_limit(spec)
    slot["images_left"] = prompt.windows[0].images if prompt.windows else 0
    slot["admitted"] = state.admissions
    slot["last_visible_ns"] = -1
    slot["token_memory"] = slot["delivery_memory"] = math.nan
    slot["pages_held"] = -(-spec.cached_tokens // page_tokens) if page_tokens else 0
    slot["source"], slot["drafts"] = draft_source(spec)
    slot["feedback"] = int(spec.grammar or spec.host_stop or spec.host_fed)
    state.restop(number)
    state.start_slot(number)
