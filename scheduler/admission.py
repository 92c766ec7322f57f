"""Whether a request can be taken in, and what it starts as (specification "Requests", S5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler import layout
from scheduler.errors import RequestTooLong, Unservable
from scheduler.prompts import Prompt, Window, image_windows, joined_blocks, outside_blocks
from scheduler.records import RequestSpec
from scheduler.shapes import GraphKind, GraphShape


@dataclasses.dataclass(frozen=True, slots=True)
class Capabilities:
    """What the loaded graphs can do. `longest_chunk`: largest prompt capacity by unscored and scored, 0 without."""

    longest_chunk: tuple[int, int]
    generates: bool
    kinds: frozenset[GraphKind]
    image_feature_rows: int

    @classmethod
    def of(cls, shapes: Sequence[GraphShape], usable: Sequence[bool], image_feature_rows: int) -> Capabilities:
        """The capabilities of the usable shapes."""
        used = [shape for shape, use in zip(shapes, usable, strict=True) if use]
        unscored = (s.prefill_capacity for s in used if s.kind in (GraphKind.PREFILL, GraphKind.MIXED))
        scored = (s.prefill_capacity for s in used if s.kind is GraphKind.SCORED_PREFILL)
        return cls(
            (max(unscored, default=0), max(scored, default=0)),
            any(s.target_rows for s in used),
            frozenset(s.kind for s in used),
            image_feature_rows,
        )

    def has(self, kind: GraphKind) -> bool:
        """A usable graph of this kind is prepared."""
        return kind in self.kinds


def output_limit(spec: RequestSpec) -> int:
    """Output tokens that the request may ever have."""
    return min(spec.max_output_tokens, spec.context_capacity - spec.prompt_tokens)


def checked_prompt(spec: RequestSpec, can: Capabilities) -> Prompt:
    """The request's prompt with blocks and image windows, without cuts.

    Raises RequestTooLong and Unservable for what no prepared graph can ever serve.
    """
    who = f"request {spec.request_id}"
    if spec.prompt_tokens + 1 > spec.context_capacity:
        raise RequestTooLong(
            f"{who}: {spec.prompt_tokens} prompt tokens leave no room for output in a context of "
            f"{spec.context_capacity}"
        )
    longest = can.longest_chunk[int(spec.scored)]
    if not longest:
        raise Unservable(f"{who}: no {'scored ' if spec.scored else ''}prefill graph is prepared")
    if output_limit(spec) > 1 and not can.generates:
        raise Unservable(f"{who}: no generation graph is prepared, so nothing beyond the first token can be produced")
    blocks = joined_blocks(spec)
    widest = max((end - first for first, end in blocks), default=0)
    if widest > longest:
        raise Unservable(f"{who}: {widest} tokens must be prefilled at once; the largest graph holds {longest}")
    windows = image_windows(spec.images, spec.cached_tokens, can.image_feature_rows)
    _check_windows(spec, blocks, windows, can)
    return Prompt(spec.prompt_tokens, blocks, windows)


def _check_windows(
    spec: RequestSpec, blocks: Sequence[tuple[int, int]], windows: Sequence[Window], can: Capabilities
) -> None:
    who = f"request {spec.request_id}"
    if windows and not can.has(GraphKind.VISION):
        raise Unservable(f"{who}: it has images and no vision graph is prepared")
    rows = can.image_feature_rows
    widest = max((i.feature_rows for i in spec.images if i.end_token > spec.cached_tokens), default=0)
    if rows and widest > rows:
        raise Unservable(f"{who}: an image fills {widest} feature rows; the store holds {rows}")
    if len(windows) > 1 and not (can.has(GraphKind.SNAPSHOT) and can.has(GraphKind.RESTORE)):
        raise Unservable(f"{who}: its images need several windows, and so snapshot and restore graphs")
    for window in windows[1:]:
        if outside_blocks(blocks, window.first_token) != window.first_token:
            raise Unservable(f"{who}: an atomic span crosses into the image window at token {window.first_token}")


def first_stage(spec: RequestSpec, prompt: Prompt, can: Capabilities) -> int:
    """The stage that a request is admitted in."""
    if spec.restoring:
        return layout.WAITING
    if spec.cached_tokens > 0 and can.has(GraphKind.RESTORE):
        return layout.RESTORE
    if can.has(GraphKind.INIT):
        return layout.INIT
    return layout.VISION if prompt.windows else layout.PREFILL


def draft_source(spec: RequestSpec, offered: int = 0) -> tuple[int, int]:
    """(source, drafts available) of the request while `offered` copy drafts stand (S2, S3)."""
    if spec.grammar:
        return layout.NO_SOURCE, 0
    if offered:
        return layout.COPY, offered
    if "learned" in spec.proposal_sources:
        return layout.LEARNED, layout.UNBOUNDED
    return layout.NO_SOURCE, 0
