"""What decode_cadence and token_budget keep from competing: graphs that leave running answers or prompt tokens out."""

from __future__ import annotations

import dataclasses

from scheduler.plans import BarredBy, Role
from scheduler.reference.candidates import Candidate
from scheduler.reference.decision import Graph
from scheduler.reference.extents import GENERATION_KINDS, PREFILL_KINDS, is_ragged
from scheduler.reference.value import Context
from scheduler.shapes import GraphKind

INFERENCE_KINDS = PREFILL_KINDS | GENERATION_KINDS | {GraphKind.MIXED}


def with_bars(context: Context, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates with the bars of the policy. Where these leave nothing that may be chosen, there are none."""
    policy = context.decision.policy
    if policy.token_budget:
        found = _within_budget(context, candidates)
    elif policy.decode_cadence == "on":
        found = _in_cadence(context, candidates, BarredBy.CADENCE)
    else:
        return candidates
    return found if any(candidate.eligible for candidate in found) else candidates


def _within_budget(context: Context, candidates: list[Candidate]) -> list[Candidate]:
    """Every running answer, no more prompt tokens than the budget leaves, and as many of these as can be."""
    found = [
        _barred(c, BarredBy.TOKEN_BUDGET) if c.eligible and _beyond_limit(context, c) else c
        for c in _in_cadence(context, candidates, BarredBy.TOKEN_BUDGET)
    ]
    competing = [_prompt_tokens(c) for c in found if c.eligible and _stands_alone(c)]
    most = max(competing, default=0)
    return [
        _barred(c, BarredBy.TOKEN_BUDGET) if c.eligible and _stands_alone(c) and _prompt_tokens(c) < most else c
        for c in found
    ]


def _beyond_limit(context: Context, candidate: Candidate) -> bool:
    limit = context.prompt_limit
    prefill = candidate.graph.shape.kind is GraphKind.PREFILL
    return prefill and limit is not None and _prompt_tokens(candidate) > limit


def _in_cadence(context: Context, candidates: list[Candidate], barred_by: BarredBy) -> list[Candidate]:
    """Bars what leaves a running answer out where some measured graph would have held them all."""
    return [_barred(c, barred_by) if c.eligible and _breaks_cadence(context, c) else c for c in candidates]


def _breaks_cadence(context: Context, candidate: Candidate) -> bool:
    answers = len(context.decoding)
    served = sum(use.role is Role.DECODE for use in candidate.uses)
    if not _stands_alone(candidate) or candidate.graph.shape.kind is GraphKind.SCORED_PREFILL or served >= answers:
        return False
    graphs = [graph for graph in context.decision.graphs if graph.usable and graph.known]
    prompts = [use.lane.resident for use in candidate.uses if use.role is Role.PREFILL]
    if not prompts:
        return any(_holds(graph, answers) for graph in graphs)
    wide = [g.shape for g in graphs if g.shape.kind is GraphKind.MIXED and g.shape.batch_capacity > answers]
    largest = max((shape.prefill_capacity for shape in wide), default=0)
    return all(prompt.work(largest) > 0 for prompt in prompts)


def _holds(graph: Graph, answers: int) -> bool:
    """A generation or mixed graph with a row for every running answer."""
    shape = graph.shape
    if shape.kind is not GraphKind.MIXED and shape.kind not in GENERATION_KINDS:
        return False
    return shape.batch_capacity >= answers and (not is_ragged(shape) or shape.target_rows >= answers)


def _stands_alone(candidate: Candidate) -> bool:
    """Inference that follows no prerequisite."""
    return candidate.graph.shape.kind in INFERENCE_KINDS and candidate.following is None


def _prompt_tokens(candidate: Candidate) -> int:
    return sum(use.prompt_tokens for use in candidate.uses)


def _barred(candidate: Candidate, barred_by: BarredBy) -> Candidate:
    return dataclasses.replace(candidate, barred_by=barred_by)
