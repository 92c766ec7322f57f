"""How a request moves from stage to stage (specification "Requests", S5, S10). One slot at a time, on its columns.

Callers have counted the completed lane already: `in_flight` and `consumed` are those after it.
"""

from __future__ import annotations

import math

from scheduler import checkpoints, layout
from scheduler.admission import draft_source, output_limit
from scheduler.prompts import Prompt
from scheduler.records import RequestHandle, RequestSpec
from scheduler.shapes import GraphKind
from scheduler.state import SchedulerState, Tenant


def _tenant(state: SchedulerState, number: int) -> Tenant:
    tenant = state.tenants[number]
    assert tenant is not None, "a submitted lane keeps its slot"
    return tenant


def choose_cuts(state: SchedulerState, spec: RequestSpec, prompt: Prompt) -> None:
    """Notes in the prompt of a request that is let in which of its endpoints are to be captured (S10)."""
    if not state.can.has(GraphKind.SNAPSHOT) or state.resources.free_snapshot_rows < 1:
        return
    catalog = state.catalog
    costs = checkpoints.CaptureCosts(
        catalog.known_capacities(GraphKind.SCORED_PREFILL if spec.scored else GraphKind.PREFILL),
        catalog.smallest_known_ns(GraphKind.SNAPSHOT),
        state.checkpoint_fraction,
    )
    prompt.anchor, prompt.extras = checkpoints.choose_cuts(prompt, spec.cached_tokens, spec.message_boundaries, costs)


def follow(state: SchedulerState, number: int) -> None:
    """What comes after INIT, RESTORE, VISION, a snapshot or external restoration."""
    columns = state.columns
    if columns["images_left"][number] > 0:
        stage = layout.VISION
    else:
        whole = columns["consumed"][number] >= columns["prompt_tokens"][number]
        stage = layout.DECODE if whole else layout.PREFILL
    columns["stage"][number] = stage


def after_state_graph(state: SchedulerState, number: int) -> None:
    """A lane of INIT, RESTORE, VISION, SNAPSHOT or TERMINAL_SNAPSHOT has completed."""
    columns = state.columns
    stage = int(columns["stage"][number])
    if stage == layout.TERMINAL:
        tenant = _tenant(state, number)
        if tenant.finished:
            state.unpublished_snapshots[tenant.spec.request_id] = None
        state.release(number)
        return
    if stage == layout.VISION:
        columns["images_left"][number] -= 1
    if stage == layout.SNAPSHOT and columns["window"][number] == 1:
        _next_window(state, number)
        return
    follow(state, number)


def _next_window(state: SchedulerState, number: int) -> None:
    """The state at a window's end is kept; restoring it binds a fresh generation."""
    columns, tenant = state.columns, _tenant(state, number)
    columns["generation"][number] += 1
    columns["images_left"][number] = columns["window_images"][number]
    columns["window"][number] = columns["window_images"][number] = 0
    columns["stage"][number] = layout.RESTORE
    tenant.handle = RequestHandle(number, int(columns["generation"][number]))


def after_prefill(state: SchedulerState, number: int) -> None:
    """A prompt lane has completed and its request goes on: at a stop it may be captured, then what follows."""
    columns, tenant = state.columns, _tenant(state, number)
    prompt, consumed = tenant.prompt, int(columns["consumed"][number])
    following = prompt.next_window
    if following is not None and consumed == following.first_token:
        prompt.window += 1
        columns["window"][number], columns["window_images"][number] = 1, following.images
        stage = layout.SNAPSHOT
    elif (consumed == prompt.anchor or consumed in prompt.extras) and captured(state, number):
        stage = layout.SNAPSHOT
    else:
        stage = layout.PREFILL if consumed < prompt.tokens else layout.DECODE
    columns["stage"][number] = stage
    state.restop(number)


def captured(state: SchedulerState, number: int) -> bool:
    """Whether the cut that a slot has reached gets its snapshot (S10)."""
    consumed, cancelled = state.columns["consumed"], state.columns["cancelled"]
    guards = sum(
        1
        for i, tenant in enumerate(state.tenants)
        if tenant is not None and cancelled[i] == 0 and tenant.prompt.anchor > consumed[i]
    )
    fresh = state.catalog.any_fresh(GraphKind.SNAPSHOT, state.now_ns)
    prompt = _tenant(state, number).prompt
    return checkpoints.captures(prompt, int(consumed[number]), state.resources.free_snapshot_rows, guards, fresh)


def end_normally(state: SchedulerState, number: int) -> None:
    """The request's answer is complete: TERMINAL if its capture is worth it, else the slot is free (S5).

    With another lane in flight a slot that goes to no snapshot is kept until that lane has completed.
    """
    columns = state.columns
    retiring = columns["retiring"][number] == 1
    if retiring or _capture_pays(state, number):
        if not retiring:
            columns["terminal_since_ns"][number] = state.now_ns
        columns["retiring"][number] = 0
        _tenant(state, number).finished = True
        _enter_terminal(state, number)
    else:
        drop(state, number)


def finish(state: SchedulerState, number: int) -> None:
    """The host has found the end of the request's answer in what was published of it.

    A state that does not reach the answer yet is not worth a capture, and a copy that is under way must not be taken
    for the terminal one. A preempted request retires as before, and its answer has ended.
    """
    columns = state.columns
    stage = int(columns["stage"][number])
    whole = columns["consumed"][number] >= columns["prompt_tokens"][number]
    if stage == layout.TERMINAL:
        _tenant(state, number).finished = True
    elif whole and (stage == layout.DECODE or columns["in_flight"][number] == 0):
        end_normally(state, number)
    else:
        drop(state, number)


def _capture_pays(state: SchedulerState, number: int) -> bool:
    if not state.can.has(GraphKind.TERMINAL_SNAPSHOT):
        return False
    smallest_ns = state.catalog.smallest_known_ns(GraphKind.TERMINAL_SNAPSHOT)
    return smallest_ns == 0 or bool(state.columns["decode_earned_ms"][number] >= smallest_ns / 1e6)


def retire(state: SchedulerState, number: int) -> None:
    """A preempted request whose last frame has completed."""
    state.columns["retiring"][number] = 0
    _enter_terminal(state, number)


def _enter_terminal(state: SchedulerState, number: int) -> None:
    state.columns["stage"][number] = layout.TERMINAL


def drop(state: SchedulerState, number: int) -> None:
    """The request is over: its slot is free, or kept unselected until its last frame completes."""
    if state.columns["in_flight"][number] > 0:
        state.columns["cancelled"][number] = 1
    else:
        state.release(number)


def set_offer(state: SchedulerState, number: int, count: int) -> None:
    """`count` copy drafts stand for the request from now on; 0: none (S2)."""
    columns, spec = state.columns, _tenant(state, number).spec
    columns["source"][number], columns["drafts"][number] = draft_source(spec, count)
    columns["feedback"][number] = spec.grammar or spec.host_stop or spec.host_fed or count > 0
    state.rebuild_acceptance(number, number + 1)


def fill_slot(state: SchedulerState, tenant: Tenant) -> None:
    """A newcomer's record, in the slot and stage that it was put in; then its first estimates, memory and view."""
    number, spec, prompt = tenant.handle.slot, tenant.spec, tenant.prompt
    columns, page_tokens = state.columns, state.resources.page_tokens
    state.admissions += 1
    columns["scored"][number] = spec.scored
    columns["prompt_tokens"][number] = spec.prompt_tokens
    columns["consumed"][number] = spec.cached_tokens
    columns["output_limit"][number] = output_limit(spec)
    columns["images_left"][number] = prompt.windows[0].images if prompt.windows else 0
    columns["admitted"][number] = state.admissions
    columns["arrived_ns"][number] = state.now_ns - spec.waited_ns
    columns["blocks"][number] = bool(prompt.blocks)
    columns["last_visible_ns"][number] = -1
    columns["token_memory"][number] = columns["delivery_memory"][number] = math.nan
    columns["pages_held"][number] = -(-spec.cached_tokens // page_tokens) if page_tokens else 0
    columns["source"][number], columns["drafts"][number] = draft_source(spec)
    columns["feedback"][number] = spec.grammar or spec.host_stop or spec.host_fed
    state.restop(number)
    state.start_slot(number)
