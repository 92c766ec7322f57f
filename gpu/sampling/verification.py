"""Which drafts of a round stand, and the token that follows them. The twin is gpu/reference/verification.py."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gpu.device import TokenLogprobs
from gpu.sampling.logprobs import token_logprobs
from gpu.sampling.philox import Purpose, uniforms
from gpu.sampling.processors import TokenDistribution, target_distribution
from gpu.sampling.table import SamplingTable, SlotSampling

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
DraftDistribution = tuple[Int64 | None, Float32]
Draws = Mapping[tuple[int, int, Purpose], float]

_NO_SURVIVAL = np.empty(0, dtype=np.float64)


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyLane:
    """One lane of a round.

    Rows `first_row` to `first_row` + k of the logits follow the pending token, draft 1, …, draft k. `drafts` [k]:
    token ids. `q`: (ids [Vd] ascending, or None: 0 to Vd - 1; probabilities float32 [k, Vd]) that the drafts were
    drawn from, None where they were not drawn. `index`: the first drawn token's number in the request's output.

    How many drafts a round verifies may depend on the tokens before each of them. Where it depends on a draft itself
    (on its own confidence), rejection sampling is biased: then the drafts must not be drawn.
    """

    slot: int
    first_row: int
    drafts: Int64
    q: DraftDistribution | None
    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """`emitted`: the `accepted` drafts and one token more; empty where not `finite`.

    `survival` [k]: cumulative products of min(1, p/q), NaN from a row on that is not finite. `logprobs`: one entry per
    emitted token where the request asked for them. Not `finite`: a row that was needed holds NaN, +inf or only -inf.
    """

    emitted: tuple[int, ...]
    accepted: int
    survival: Float64
    finite: bool
    logprobs: tuple[TokenLogprobs, ...] = ()


def verify_round(logits: Float32, lanes: Sequence[VerifyLane], table: SamplingTable) -> tuple[VerifyOutcome, ...]:
    """One outcome per lane for raw logits [rows, vocab]. Changes nothing; record() what was emitted afterwards.

    Greedy lanes accept a draft that is the likeliest token. Reproducible lanes, and all whose drafts were not drawn,
    accept a draft that equals the token which plain decoding would draw. Others accept a draft of probability p with
    probability min(1, p/q), and draw from max(p - q, 0) in place of the first that falls.
    """
    best = logits.argmax(axis=1)  # of NaN, where a row holds any
    finite = np.isfinite(logits[np.arange(len(logits)), best])
    draws = _draws(lanes, table)
    return tuple(_verify_lane(logits, best, finite, lane, table.of(lane.slot), draws) for lane in lanes)


def _verify_lane(
    logits: Float32, best: Int64, finite: npt.NDArray[np.bool_], lane: VerifyLane, slot: SlotSampling, draws: Draws
) -> VerifyOutcome:
    rows = slice(lane.first_row, lane.first_row + len(lane.drafts) + 1)
    if slot.greedy and not slot.adjusts:
        tokens, survival = _greedy_tokens(best[rows], finite[rows], lane.drafts)
    elif not len(lane.drafts):
        share = draws.get((lane.slot, lane.index, Purpose.TARGET), 0.0)
        tokens, survival = [_plain_token(logits[lane.first_row], slot, share)], _NO_SURVIVAL
    else:
        tokens, survival = _drawn_tokens(logits[rows], finite[rows], lane, slot, draws)
    if tokens[-1] is None:
        return VerifyOutcome((), 0, survival, finite=False)
    emitted = tuple(token for token in tokens if token is not None)
    wanted = slot.parameters.logprobs
    if wanted is None:
        return VerifyOutcome(emitted, len(emitted) - 1, survival, finite=True)
    entries = (token_logprobs(logits[lane.first_row + row], token, wanted) for row, token in enumerate(emitted))
    return VerifyOutcome(emitted, len(emitted) - 1, survival, finite=True, logprobs=tuple(entries))


def _draws(lanes: Sequence[VerifyLane], table: SamplingTable) -> Draws:
    """Every number of this round by (slot, output token, purpose), made in one go."""
    keys = []
    for lane in lanes:
        slot = table.of(lane.slot)
        if slot.greedy:
            continue
        tokens = range(lane.index, lane.index + len(lane.drafts) + 1)
        keys += [(lane.slot, token, Purpose.TARGET) for token in tokens]
        if lane.q is not None and not slot.by_equality:
            keys += [(lane.slot, token, Purpose.ACCEPT) for token in tokens[:-1]]
    if not keys:
        return {}
    seeds = [table.of(slot).parameters.seed for slot, _, _ in keys]
    numbers = uniforms(seeds, [token for _, token, _ in keys], [purpose for _, _, purpose in keys])
    return dict(zip(keys, numbers.tolist(), strict=True))


Verified = tuple[list[int | None], Float64]
"""Accepted drafts and the token after them, None for one that a row gave no answer for; survival [k]."""


def _greedy_tokens(best: Int64, finite: npt.NDArray[np.bool_], drafts: Int64) -> Verified:
    if not len(drafts):
        return [int(best[0]) if finite[0] else None], _NO_SURVIVAL
    matches = best[:-1] == drafts
    survival = np.where(finite[:-1], matches, np.nan).cumprod()
    accepted = int(matches.argmin()) if not matches.all() else len(drafts)
    if not finite[: accepted + 1].all():
        return [None], survival
    return [*drafts[:accepted].tolist(), int(best[accepted])], survival


def _plain_token(raw: Float32, slot: SlotSampling, share: float) -> int | None:
    adjusted = slot.adjusted(raw)
    best = int(adjusted.argmax())  # of NaN, where the row holds any
    largest = float(adjusted[best])
    if not math.isfinite(largest):
        return None
    return best if slot.greedy else target_distribution(adjusted, largest, slot.parameters).token_at(share)


def _drawn_tokens(
    rows: Float32, finite: npt.NDArray[np.bool_], lane: VerifyLane, slot: SlotSampling, draws: Draws
) -> Verified:
    drafts = lane.drafts.tolist()
    tokens: list[int | None] = []
    ratios = np.full(len(drafts), np.nan)
    ended = False
    with contextlib.closing(_distributions(rows, finite, lane, slot)) as distributions:
        for row, p in enumerate(distributions):
            draft = drafts[row] if row < len(drafts) else None
            if p is not None and draft is not None:
                ratios[row] = _acceptance(p, draft, row, lane, slot)
            if not ended:
                token = None if p is None else _token(p, draft, row, ratios, lane, slot, draws)
                tokens.append(token)
                ended = token is None or token != draft
            if ended and row + 1 >= len(drafts):
                break  # nobody asks for the last row's distribution
    return tokens, ratios.cumprod()


def _acceptance(p: TokenDistribution, draft: int, row: int, lane: VerifyLane, slot: SlotSampling) -> float:
    """The probability that this draft stands."""
    if slot.by_equality or lane.q is None:
        return p.probability(draft)
    ids, probabilities = lane.q
    position = draft if ids is None else int(ids.searchsorted(draft))
    return accepted_share(p.probability(draft), float(probabilities[row, position]))


def _token(
    p: TokenDistribution,
    draft: int | None,
    row: int,
    ratios: Float64,
    lane: VerifyLane,
    slot: SlotSampling,
    draws: Draws,
) -> int:
    """The output token of this row: the draft where it stands."""
    number = lane.index + row
    if draft is not None and lane.q is not None and not slot.by_equality:
        if draws[lane.slot, number, Purpose.ACCEPT] < ratios[row]:
            return draft
        p = _residual(p, lane.q, row, slot.vocab)
    return p.token_at(0.0 if slot.greedy else draws[lane.slot, number, Purpose.TARGET])


def accepted_share(p: float, q: float) -> float:
    """The probability that a draft stands: min(1, p/q), for its probability in the target's and the draft's eyes."""
    if p >= q:
        return 1.0 if p > 0.0 else 0.0
    return p / q


def _distributions(
    rows: Float32, finite: npt.NDArray[np.bool_], lane: VerifyLane, slot: SlotSampling
) -> Generator[TokenDistribution | None, None, None]:
    """Each row's distribution in turn, None where it is not finite; penalties see the drafts before the row."""
    counted: list[int] = []
    drafts = lane.drafts.tolist()
    try:
        for row, logits in enumerate(rows):
            yield _distribution(slot.adjusted(logits), slot) if finite[row] else None
            if slot.counts is not None and row < len(drafts):
                slot.counts.add((drafts[row],))
                counted.append(drafts[row])
    finally:
        if slot.counts is not None:
            slot.counts.take_back(counted)


def _distribution(adjusted: Float32, slot: SlotSampling) -> TokenDistribution | None:
    best = int(adjusted.argmax())
    largest = float(adjusted[best])
    if not math.isfinite(largest):
        return None
    if slot.greedy:
        return TokenDistribution(np.array([best]), np.ones(1, dtype=np.float32))
    return target_distribution(adjusted, largest, slot.parameters)


def _residual(p: TokenDistribution, q: DraftDistribution, row: int, vocab: int) -> TokenDistribution:
    """What p has beyond q, max(p - q, 0); p itself where rounding leaves nothing of it."""
    ids, probabilities = q
    proposed = np.zeros(vocab, dtype=np.float32)
    proposed[slice(probabilities.shape[1]) if ids is None else ids] = probabilities[row]
    weights = p.weights / p.weights.sum()
    weights -= proposed if p.ids is None else proposed[p.ids]
    np.maximum(weights, 0.0, out=weights)
    return TokenDistribution(p.ids, weights) if weights.any() else p
