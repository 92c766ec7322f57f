"""Padding pruning (specification S4): the same work in a larger graph never competes, whatever was measured."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Hashable, Iterable

from scheduler.plans import BarredBy
from scheduler.reference.candidates import Candidate, Use
from scheduler.reference.extents import PREFILL_KINDS, capacities
from scheduler.shapes import GraphShape

Cohort = tuple[tuple[int, int, int], ...]


def pruned(candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, those barred that do the work of another eligible one in a larger graph."""
    groups: dict[Hashable, list[tuple[int, ...]]] = defaultdict(list)
    for candidate in candidates:
        for key, extents in _comparisons(candidate):
            groups[key].append(extents)
    return [_barred(c) if any(_exceeds(e, groups[key]) for key, e in _comparisons(c)) else c for c in candidates]


def _comparisons(candidate: Candidate) -> Iterable[tuple[Hashable, tuple[int, ...]]]:
    """(what must be equal, capacities that are compared): of the submitted graph, and of a pair's following graph."""
    shape, following = candidate.graph.shape, candidate.following
    if not candidate.eligible or shape.kind in PREFILL_KINDS:
        return
    cohort, following_cohort = _cohort(candidate.uses), _cohort(candidate.following_uses)
    position = following.position if following else -1
    yield ("submitted", *_identity(shape), cohort, position, following_cohort), capacities(shape)
    if following is not None and following.shape.kind not in PREFILL_KINDS:
        place = candidate.graph.position
        yield ("following", place, cohort, *_identity(following.shape), following_cohort), capacities(following.shape)


def _identity(shape: GraphShape) -> tuple[Hashable, ...]:
    return shape.kind, shape.draft_depth, shape.allocation


def _cohort(uses: tuple[Use, ...]) -> Cohort:
    """(slot, rows, prompt tokens) of each lane, by slot."""
    return tuple(sorted((use.lane.slot, use.rows, use.prompt_tokens) for use in uses))


def _exceeds(extents: tuple[int, ...], others: list[tuple[int, ...]]) -> bool:
    """Some other one is nowhere larger and somewhere smaller."""
    return any(o != extents and all(a <= b for a, b in zip(o, extents, strict=True)) for o in others)


def _barred(candidate: Candidate) -> Candidate:
    return dataclasses.replace(candidate, barred_by=BarredBy.PRUNED)
