"""Whether one request's slot, or one frame in flight, of a checkpoint is what the request and the catalog make it.

Answers are what does not fit, in words, or None. The numbers' ranges have been checked (scheduler.saved_checks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler import layout
from scheduler.admission import draft_source, output_limit
from scheduler.catalog import Catalog
from scheduler.checks import whole
from scheduler.frames import QUEUEABLE, REASON_NUMBER
from scheduler.plans import CostState, PlanLane
from scheduler.records import MAX_TOKENS
from scheduler.saved import SavedFrame, SavedTenant
from scheduler.shapes import GraphKind, GraphShape

Row = Mapping[str, Any]
"""A record's fields as Python numbers."""

_GENERATION = frozenset({GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED})
_PREFILL = frozenset({GraphKind.PREFILL, GraphKind.SCORED_PREFILL})
_DECODING = frozenset({layout.DECODE, layout.TERMINAL})  # an answer may end while another lane of it runs
_STAGES = {
    GraphKind.INIT: frozenset({layout.INIT}),
    GraphKind.RESTORE: frozenset({layout.RESTORE}),
    GraphKind.VISION: frozenset({layout.VISION}),
    GraphKind.SNAPSHOT: frozenset({layout.SNAPSHOT, layout.TERMINAL}),
    GraphKind.TERMINAL_SNAPSHOT: frozenset({layout.TERMINAL}),
}


def check_tenant(kept: SavedTenant, row: Row, works: Sequence[int], capacities: Sequence[int]) -> str | None:
    """What is wrong with the slot of a request whose prompt has been checked. `works`: its prompt works."""
    spec, prompt, stage = kept.spec, kept.prompt, row["stage"]
    if stage == layout.FREE or row["generation"] != kept.handle.generation or row["generation"] < 1:
        return "its slot is not its own"
    limits = (row["scored"], row["prompt_tokens"], row["output_limit"], row["blocks"])
    if limits != (spec.scored, spec.prompt_tokens, output_limit(spec), bool(prompt.blocks)):
        return "its limits"
    consumed = row["consumed"]
    whole_prompt = consumed == spec.prompt_tokens
    if not spec.cached_tokens <= consumed <= spec.prompt_tokens:
        return "its consumed prompt"
    if row["emitted"] + row["pending"] > row["output_limit"] or (row["emitted"] and not whole_prompt):
        return "its output"
    if not whole_prompt:
        end = prompt.segment_end(consumed)
        if row["segment_end"] != end or (capacities and list(works) != prompt.works(consumed, end, capacities)):
            return "its next prompt chunks"
    images = len(spec.images)
    if row["images_left"] > images or row["window_images"] > images:
        return "its images"
    fits = {
        layout.DECODE: whole_prompt,
        layout.PREFILL: not whole_prompt,
        layout.VISION: row["images_left"] > 0,
    }
    if not fits.get(stage, True) or (row["window"] and not _at_window(kept, stage)):
        return "its stage"
    return _check_drafts(kept, row)


def _at_window(kept: SavedTenant, stage: int) -> bool:
    """Whether a slot may wait for the snapshot at an image window's end; one that was preempted there is TERMINAL."""
    return stage in _STAGES[GraphKind.SNAPSHOT] and kept.prompt.window > 0


def _check_drafts(kept: SavedTenant, row: Row) -> str | None:
    """Where drafts come from, and what waits for a completion, follow from the request and from a standing offer."""
    spec = kept.spec
    offered = row["drafts"] if row["source"] == layout.COPY else 0
    if offered and (offered > MAX_TOKENS or "copy" not in spec.proposal_sources):
        return "its copy offer"
    if (row["source"], row["drafts"]) != draft_source(spec, offered):
        return "its drafts"
    if row["feedback"] != (spec.grammar or spec.host_stop or spec.host_fed or offered > 0):
        return "what it waits for"
    return None


def check_frame(
    kept: SavedFrame,
    catalog: Catalog,
    arrays: Mapping[str, npt.NDArray[Any]],
    tenants: Mapping[int, SavedTenant],
    queued: int,
) -> str | None:
    """What is wrong with a frame in flight; `queued`: how many there are."""
    plan = kept.plan
    if not whole(plan.graph, 0, len(catalog.shapes) - 1) or catalog.shapes[plan.graph] != plan.shape:
        return "its graph"
    if queued > 1 and not (plan.shape.kind in QUEUEABLE and kept.known):
        return "its graph runs alone"
    if kept.known != (plan.cost_state is not CostState.UNKNOWN) or not plan.cohort:
        return "its plan"
    if len(plan.cohort) % layout.LANE.itemsize:
        return "its lanes"
    cohort = np.frombuffer(plan.cohort, layout.LANE)
    record = dict(zip(layout.FRAME.names or (), arrays["frames"][kept.number].item(), strict=True))
    expected = {
        "fence": kept.fence,
        "graph": plan.graph,
        "lanes": len(cohort),
        "reason": REASON_NUMBER[plan.reason],
        "known": kept.known,
        "selected_cost_ns": plan.selected_cost_ns,
        "queued": kept.queued,
        "committed_ns": kept.committed_ns,
        "expected_end_ns": kept.expected_end_ns,
    }
    if any(record[name] != value for name, value in expected.items()):
        return "its record"
    if arrays["lanes"][kept.number, : len(cohort)].tobytes() != plan.cohort:
        return "its recorded lanes"
    return _check_lanes(plan.shape, cohort, plan.lanes, arrays, tenants, catalog.capacities)


def _check_lanes(
    shape: GraphShape,
    cohort: npt.NDArray[np.void],
    shown: Sequence[PlanLane],
    arrays: Mapping[str, npt.NDArray[Any]],
    tenants: Mapping[int, SavedTenant],
    capacities: Sequence[int],
) -> str | None:
    """Lanes in slot order, of requests that are there, each within what the graph and the request allow."""
    slots = cohort["slot"].tolist()
    if len(slots) > shape.batch_capacity or len(shown) != len(slots) or slots != sorted(set(slots) & tenants.keys()):
        return "the slots of its lanes"
    names = layout.LANE.names or ()
    chunks: list[int] = []
    for record, lane in zip(cohort, shown, strict=True):
        row = dict(zip(names, record.item(), strict=True))
        tenant, slot = tenants[row["slot"]], arrays["slots"][row["slot"]]
        if (lane.handle, lane.request_id) != (tenant.handle, tenant.spec.request_id):
            return "whose its lanes are"
        if row["generation"] != tenant.handle.generation or not 0 <= row["epoch"] <= slot["epoch"]:
            return "whose its lanes are"
        if (lane.query_length, lane.ceiling, lane.prompt_tokens) != (row["rows"], row["ceiling"], row["prompt_tokens"]):
            return "what its lanes do"
        within = capacities.index(shape.prefill_capacity) + 1 if shape.prefill_capacity else 0
        if not _lane_fits(shape, row, slot, arrays["works"][row["slot"]][:within].tolist()):
            return "what its lanes do"
        if row["prompt_tokens"] > 0:
            chunks.append(row["prompt_tokens"])
    if (
        len(chunks) > shape.prompt_rows
        or sum(chunks) > shape.prefill_capacity
        or (shape.kind in _PREFILL and not chunks)
    ):
        return "the prompts of its lanes"
    return None


def _lane_fits(shape: GraphShape, row: Row, slot: np.void, works: Sequence[int]) -> bool:
    """Whether a lane is a prompt's, a decoding or a state lane as the planner makes them.

    `works`: its slot's prompt works for the capacities up to the graph's own.
    """
    stage, rows, ceiling, tokens = int(slot["stage"]), row["rows"], row["ceiling"], row["prompt_tokens"]
    if not 0.0 <= row["expected_tokens"] <= shape.lane_width or row["source"] not in (-1, 0, 1):
        return False
    if tokens:
        last = int(slot["consumed"]) + tokens == slot["prompt_tokens"]
        prompt_lane = stage == layout.PREFILL and tokens == rows and ceiling == last
        return bool(prompt_lane) and row["source"] == layout.NO_SOURCE and _may_consume(shape, slot, tokens, works)
    if shape.kind in _GENERATION:
        drafts = row["source"] == layout.NO_SOURCE or rows > 1
        return stage in _DECODING and 1 <= rows == ceiling <= shape.lane_width and drafts
    return shape.kind in _STAGES and stage in _STAGES[shape.kind] and rows == 1 and ceiling == 0


def _may_consume(shape: GraphShape, slot: np.void, tokens: int, works: Sequence[int]) -> bool:
    """Whether a prompt lane may consume so much: all that fits, or less in a mixed graph, which it may share."""
    if not works or shape.kind in _PREFILL:
        return bool(works) and tokens == works[-1]
    return tokens in works if slot["blocks"] else 0 < tokens <= works[-1]
