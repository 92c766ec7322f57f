"""Admission: may the request ever be served, and where does it start (specification "Requests")."""

from __future__ import annotations

from scheduler.errors import Unservable
from scheduler.records import RequestSpec
from scheduler.reference.decision import Graph
from scheduler.reference.loading import generates
from scheduler.reference.prompts import Prompt, inside, longest_block, window_starts
from scheduler.reference.residents import Stage
from scheduler.shapes import GraphKind


def check_servable(spec: RequestSpec, prompt: Prompt, graphs: tuple[Graph, ...], feature_rows: int) -> None:
    """Raises Unservable when no prepared graph can ever serve the request."""
    usable = [graph.shape for graph in graphs if graph.usable]
    kinds = {shape.kind for shape in usable}
    prompt_kinds = {GraphKind.SCORED_PREFILL} if spec.scored else {GraphKind.PREFILL, GraphKind.MIXED}
    largest = max((shape.prefill_capacity for shape in usable if shape.kind in prompt_kinds), default=0)
    output = min(spec.max_output_tokens, spec.context_capacity - spec.prompt_tokens)
    starts = window_starts(prompt.windows)
    problem = None
    if largest == 0:
        problem = "no graph reads its prompt"
    elif output > 1 and not any(generates(shape) for shape in usable):
        problem = "no graph generates more than its first token"
    elif longest_block(prompt.blocks) > largest:
        problem = f"an atomic span is longer than {largest} tokens"
    elif any(prompt.windows) and GraphKind.VISION not in kinds:
        problem = "no graph sees its images"
    elif feature_rows and any(image.feature_rows > feature_rows for window in prompt.windows for image in window):
        problem = "an image fills more rows than there are"
    elif starts and not {GraphKind.SNAPSHOT, GraphKind.RESTORE} <= kinds:
        problem = "several image windows need snapshot and restore"
    elif any(inside(prompt.blocks, start) for start in starts):
        problem = "an atomic span crosses a window of images"
    if problem is not None:
        raise Unservable(f"request {spec.request_id}: {problem}")


def first_stage(spec: RequestSpec, prompt: Prompt, graphs: tuple[Graph, ...]) -> Stage:
    """Where an admitted request starts."""
    kinds = {graph.shape.kind for graph in graphs}
    if spec.restoring:
        return Stage.WAITING
    if spec.cached_tokens > 0 and GraphKind.RESTORE in kinds:
        return Stage.RESTORE
    if GraphKind.INIT in kinds:
        return Stage.INIT
    return after_state(len(prompt.windows[0]))


def after_state(images_left: int) -> Stage:
    """What follows INIT, RESTORE and external restoration."""
    return Stage.VISION if images_left else Stage.PREFILL
