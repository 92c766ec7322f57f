"""The obvious twin of gpu/sampling/verification.py: the rules of speculative sampling, one draft at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.device import SamplingParameters
from gpu.reference.sampling import probabilities, token_at, uniform

_TARGET, _ACCEPT = 0, 1


@dataclasses.dataclass(frozen=True, slots=True)
class VerifiedDrafts:
    """`emitted`: the accepted drafts and one token more. `survival`: cumulative products of min(1, p/q)."""

    emitted: tuple[int, ...]
    accepted: int
    survival: tuple[float, ...]


def verify_drafts(
    logits: npt.NDArray[np.float32],
    drafts: Sequence[int],
    q: Sequence[Sequence[float]] | None,
    parameters: SamplingParameters,
    index: int,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
) -> VerifiedDrafts:
    """Verify one lane. `logits` [drafts + 1, vocab] raw; `q` [drafts, vocab], None where the drafts were not drawn."""
    emitted: list[int] = []
    survival: list[float] = []
    p = [probabilities(row, parameters, prompt_ids, [*output_ids, *drafts[:depth]]) for depth, row in enumerate(logits)]
    by_equality = q is None or parameters.reproducible or parameters.temperature == 0
    for depth, draft in enumerate(drafts):
        ratio = p[depth][draft] if by_equality or q is None else _share(p[depth][draft], q[depth][draft])
        survival.append(ratio * (survival[-1] if survival else 1.0))
    for depth, draft in enumerate(drafts):
        draw = uniform(parameters.seed, index + depth, _TARGET)
        if by_equality or q is None:
            token = token_at(p[depth], draw)
        elif uniform(parameters.seed, index + depth, _ACCEPT) < _share(p[depth][draft], q[depth][draft]):
            token = draft
        else:
            rest = [max(ours - theirs, 0.0) for ours, theirs in zip(p[depth], q[depth], strict=True)]
            token = token_at(rest if sum(rest) > 0 else p[depth], draw)
        emitted.append(token)
        if token != draft:
            return VerifiedDrafts(tuple(emitted), depth, tuple(survival))
    last = token_at(p[-1], uniform(parameters.seed, index + len(drafts), _TARGET))
    return VerifiedDrafts((*emitted, last), len(drafts), tuple(survival))


def _share(p: float, q: float) -> float:
    """min(1, p/q)."""
    return 0.0 if p == 0 else min(1.0, p / q) if q > 0 else 1.0
