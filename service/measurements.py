"""What `--device simulated` is made from: measured durations and acceptance of drafts, read from CSV files."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from scheduler.shapes import Allocation, GraphKind, GraphShape
from scheduler.simulation.acceptance import AcceptanceLuck, Survival, parse_acceptance
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.measured import ContextCurve, parse_catalog, scheduler_shapes
from service.settings import Settings

_REQUESTS = 1 << 16
"""Requests whose luck differs; a seed beyond them shares another one's."""


class SeededAcceptance:
    """Accepted drafts by a request's seed and its number of output tokens; implements the device's DraftLuck."""

    def __init__(self, survival: Survival, depth: int) -> None:
        """`depth`: the deepest draft of any program."""
        self._luck = AcceptanceLuck(survival, depth)

    def survival(self, seed: int) -> npt.NDArray[np.float64]:
        """Mean probability that drafts 1 to i are all accepted, [depth]."""
        return self._luck.curve(seed % _REQUESTS)

    def accepted(self, seed: int, output_tokens: int) -> bytes:
        """Drafts accepted in the round that follows n output tokens, by n from 0 to `output_tokens`."""
        return self._luck.accepted(seed % _REQUESTS, output_tokens)[::-1]


@dataclasses.dataclass(frozen=True, slots=True)
class Measurements:
    """`durations`: of each program, in the catalog's order, ms by mean context tokens, with the time scale in it.

    `acceptance` is None without drafts.
    """

    durations: Mapping[GraphShape, Callable[[float], float]]
    acceptance: SeededAcceptance | None


def read_measurements(settings: Settings) -> Measurements:
    """The graphs of `settings.catalog` that these settings prepare, and how drafts are accepted.

    Raises SimulationError, which names the option and says what to do.
    """
    if settings.catalog is None:
        raise SimulationError("--device simulated takes its times from a measured catalog; give --catalog FILE")
    try:
        table = parse_catalog(_text(settings.catalog), pathlib.Path(settings.catalog).name)
        curves = scheduler_shapes(
            table, settings.request_slots, settings.draft_tokens, Allocation(settings.draft_allocation)
        ).curves
    except SimulationError as error:
        raise SimulationError(f"--catalog: {error}") from None
    prepared = {shape: curve for shape, curve in curves.items() if _is_prepared(shape, settings)}
    prepared = _with_prompt_rows(prepared, settings.mixed_prompt_rows)
    _check_kinds(prepared, settings)
    scale, by_context = settings.time_scale, table.by_context
    durations = {shape: _duration(curve, scale, by_context) for shape, curve in prepared.items()}
    return Measurements(durations, _acceptance(settings, max(shape.draft_depth for shape in prepared)))


def _is_prepared(shape: GraphShape, settings: Settings) -> bool:
    """The settings that limit any device's programs limit these."""
    if shape.kind is GraphKind.MIXED and not (
        settings.mixed_prefill and shape.prompt_rows <= settings.mixed_prompt_rows
    ):
        return False
    if shape.draft_depth and shape.ragged and shape.allocation is Allocation.NONE:
        return False
    return shape.target_width == 1 or shape.target_rows <= settings.speculative_token_capacity


def _with_prompt_rows(shapes: Mapping[GraphShape, ContextCurve], rows: int) -> dict[GraphShape, ContextCurve]:
    """Mixed graphs carry up to `rows` prompts in the time that was measured with one, unless more were measured."""
    wider: dict[GraphShape, ContextCurve] = {}
    for shape, curve in shapes.items():
        if shape.kind is GraphKind.MIXED and shape.prompt_rows == 1:
            carrying = dataclasses.replace(shape, prompt_rows=min(rows, shape.batch_capacity))
            if carrying == shape or carrying not in shapes:
                wider[carrying] = curve
        else:
            wider[shape] = curve
    return wider


def _check_kinds(shapes: Iterable[GraphShape], settings: Settings) -> None:
    kinds = {shape.kind for shape in shapes}
    if GraphKind.PREFILL not in kinds:
        raise SimulationError("--catalog: no prefill graph is left, so no prompt can be read; add prefill rows")
    if not kinds & {GraphKind.DECODE, GraphKind.SPECULATIVE}:
        raise SimulationError("--catalog: no decode graph is left, so nothing can be generated; add decode rows")
    if settings.draft_tokens and not any(shape.draft_depth for shape in shapes):
        raise SimulationError(
            f"--catalog: no speculative graph has at most {settings.draft_tokens} drafts (--draft-tokens) and "
            f"{settings.speculative_token_capacity} rows (--speculative-token-capacity); add rows, or leave "
            "--draft-tokens out"
        )


def _duration(curve: ContextCurve, scale: float, by_context: bool) -> Callable[[float], float]:
    """As in a simulation: durations follow the context where the catalog has it."""
    reference_ms = scale * curve.reference_ms
    return (lambda context: scale * curve.at(context)) if by_context else (lambda _context: reference_ms)


def _acceptance(settings: Settings, depth: int) -> SeededAcceptance | None:
    if not depth:
        return None
    if settings.acceptance is None:
        raise SimulationError(
            "--draft-tokens on a simulated device needs --acceptance FILE, which says what is accepted"
        )
    try:
        path = pathlib.Path(settings.acceptance)
        return SeededAcceptance(parse_acceptance(_text(settings.acceptance), path.name), depth)
    except SimulationError as error:
        raise SimulationError(f"--acceptance: {error}") from None


def _text(path: str) -> str:
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SimulationError(f"{path} cannot be read: {error.strerror or error}; name a CSV file") from None
    except UnicodeDecodeError:
        raise SimulationError(f"{path} is not UTF-8 text; name a CSV file") from None
