"""draft_sample() and verify_round() as branch-free torch operations over static tensors, for captured programs.

Rules and uniform numbers are the host's; float32 sums run in another order, so that a draw on the edge between two
tokens may differ. Nothing here waits for the device or depends on values on the host. Log-probabilities are not
computed: gpu/sampling/logprobs.py takes them from downloaded logits.
"""

from __future__ import annotations

import dataclasses

import torch

from gpu.sampling.device_philox import device_uniforms
from gpu.sampling.device_table import DeviceSamplingTable
from gpu.sampling.philox import Purpose


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRound:
    """A round's inputs for B lanes and at most D drafts each; all int64 but `q` and `copies`.

    `slots` [B], the padding slot in lanes that are not used. `first_row` [B], not decreasing: the row of logits that
    follows the lane's pending token. `rows` [B]: drafts plus one, 0 in lanes that are not used. `drafts` [B, D]: any
    token ids where there are none. `indices` [B]: the first drawn token's number in the request's output. `q` float32
    [B, D, Vd]: what the drafts were drawn from, None where none was drawn; `draft_token_ids` [Vd], None: 0 to Vd - 1.
    `copies` bool [B]: lanes whose drafts were not drawn.
    """

    slots: torch.Tensor
    first_row: torch.Tensor
    rows: torch.Tensor
    drafts: torch.Tensor
    indices: torch.Tensor
    copies: torch.Tensor
    q: torch.Tensor | None = None
    draft_token_ids: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceOutcome:
    """`emitted` int64 [B, D + 1]: accepted drafts and one token more, then -1. `accepted` int64 [B].

    `survival` float64 [B, D]: as VerifyOutcome's, NaN beyond the lane's drafts. `finite` bool [B]: False, with nothing
    emitted, where a needed row is not finite and in lanes that are not used.
    """

    emitted: torch.Tensor
    accepted: torch.Tensor
    survival: torch.Tensor
    finite: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """What each row of logits is for: its lane, slot, drafts before it, and the draft that it judges; int64 [rows]."""

    lane: torch.Tensor
    slot: torch.Tensor
    depth: torch.Tensor
    judges: torch.Tensor
    draft: torch.Tensor


def device_draft_sample(
    logits: torch.Tensor, slots: torch.Tensor, indices: torch.Tensor, table: DeviceSamplingTable
) -> tuple[torch.Tensor, torch.Tensor]:
    """(positions [B] in the draft vocabulary, q float32 [B, Vd]) for draft logits float32 [B, Vd].

    `slots` [B], `indices` [B]: as draft_sample()'s. A lane that does not draw has one 1 in its row of q.
    """
    largest = logits.amax(dim=1)
    finite = largest.isfinite()
    safe = torch.where(finite.unsqueeze(1), logits, 0.0)
    best = torch.where(finite, safe.argmax(dim=1), 0)
    weights = ((safe - safe.amax(dim=1, keepdim=True)) / table.temperature[slots].unsqueeze(1)).exp()
    single = table.by_equality[slots] | ~finite
    weights = torch.where(single.unsqueeze(1), _one_hot(best, logits.shape[1]), weights)
    draws = device_uniforms(table.seed_low[slots], table.seed_high[slots], indices, Purpose.DRAFT)
    return _token_at(weights, draws), weights / weights.sum(dim=1, keepdim=True)


def device_verify(logits: torch.Tensor, inputs: DeviceRound, table: DeviceSamplingTable) -> DeviceOutcome:
    """Verify a round's drafts for raw logits float32 [rows, vocab]. record() what was emitted afterwards."""
    rows = _describe_rows(logits.shape[0], inputs)
    finite = logits.amax(dim=1).isfinite()
    adjusted = torch.where(finite.unsqueeze(1), logits, 0.0)
    if table.adjustments:
        adjusted = _adjust(adjusted, rows, inputs, table)
    largest = adjusted.amax(dim=1)
    finite = finite & largest.isfinite()
    adjusted = torch.where(finite.unsqueeze(1), adjusted, 0.0)
    weights = _target_weights(adjusted, rows.slot, table)
    ratio, accepted, token = _judge(weights, rows, inputs, table)
    return _collect(inputs, logits.shape[0], ratio, accepted & finite, token, finite)


def _describe_rows(count: int, inputs: DeviceRound) -> _Rows:
    numbers = torch.arange(count, device=inputs.slots.device)
    lane = (torch.searchsorted(inputs.first_row, numbers, right=True) - 1).clamp(min=0)
    depth = numbers - inputs.first_row[lane]
    depths = inputs.drafts.shape[1]
    judges = (depth >= 0) & (depth < inputs.rows[lane] - 1)
    if depths == 0:
        draft = torch.zeros_like(lane)
    else:
        draft = torch.where(judges, inputs.drafts[lane, depth.clamp(0, depths - 1)], 0)
    return _Rows(lane, inputs.slots[lane], depth.clamp(0, depths), judges, draft)


def _adjust(logits: torch.Tensor, rows: _Rows, inputs: DeviceRound, table: DeviceSamplingTable) -> torch.Tensor:
    """Logits [rows, vocab] after penalties, which see the drafts before each row, and bias."""
    counts = table.output_counts[rows.slot].float()
    for depth in range(inputs.drafts.shape[1]):
        before = (rows.depth > depth) & (inputs.rows[rows.lane] > depth + 1)
        token = torch.where(before, inputs.drafts[rows.lane, depth], 0)
        counts.scatter_add_(1, token.unsqueeze(1), before.float().unsqueeze(1))
    repetition = table.repetition[rows.slot].unsqueeze(1)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    adjusted = torch.where((counts > 0) | table.prompt_tokens[rows.slot], repeated, logits)
    adjusted = adjusted - table.frequency[rows.slot].unsqueeze(1) * counts
    adjusted = adjusted - table.presence[rows.slot].unsqueeze(1) * (counts > 0)
    return adjusted + table.bias[rows.slot]


def _target_weights(adjusted: torch.Tensor, slots: torch.Tensor, table: DeviceSamplingTable) -> torch.Tensor:
    """Weights [rows, vocab], not normalised, that each row's token is drawn from; one 1 in rows of greedy lanes."""
    values, order = adjusted.sort(dim=1, descending=True, stable=True)
    weights = ((values - values[:, :1]) / table.temperature[slots].unsqueeze(1)).exp()
    ranks = torch.arange(adjusted.shape[1], device=adjusted.device)
    weights = torch.where(ranks < table.top_k[slots].unsqueeze(1), weights, 0.0)
    sums = weights.cumsum(dim=1, dtype=torch.float64)
    top_p = table.top_p[slots].unsqueeze(1)
    last = (sums < top_p * sums[:, -1:]).sum(dim=1, keepdim=True).clamp(max=adjusted.shape[1] - 1)
    floor = torch.where(top_p < 1.0, weights.gather(1, last), 0.0)
    floor = torch.maximum(floor, table.min_p[slots].unsqueeze(1))
    weights = torch.where(weights >= floor, weights, 0.0)
    in_order = torch.zeros_like(weights).scatter_(1, order, weights)
    greedy = table.greedy[slots].unsqueeze(1)
    return torch.where(greedy, _one_hot(adjusted.argmax(dim=1), adjusted.shape[1]), in_order)


def _judge(
    weights: torch.Tensor, rows: _Rows, inputs: DeviceRound, table: DeviceSamplingTable
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(min(1, p/q) float64, whether the draft stands, the token where none does) of each row, all [rows]."""
    seeds = table.seed_low[rows.slot], table.seed_high[rows.slot]
    numbers = inputs.indices[rows.lane] + rows.depth
    target_draws = device_uniforms(*seeds, numbers, Purpose.TARGET)
    p = weights / weights.sum(dim=1, keepdim=True)
    p_draft = p.gather(1, rows.draft.unsqueeze(1)).squeeze(1).double()
    token = _token_at(weights, target_draws)
    equal = token == rows.draft
    if inputs.q is None or inputs.drafts.shape[1] == 0:
        return p_draft, rows.judges & equal, token
    q = _dense_q(inputs.q, rows, inputs, weights.shape[1])
    q_draft = q.gather(1, rows.draft.unsqueeze(1)).squeeze(1).double()
    ratio = torch.where(p_draft >= q_draft, (p_draft > 0).double(), p_draft / q_draft)
    rest = (p - q).clamp(min=0.0)
    rest = torch.where((rest > 0).any(dim=1, keepdim=True), rest, p)
    replacement = _token_at(rest, target_draws)
    stands = (device_uniforms(*seeds, numbers, Purpose.ACCEPT) < ratio) | (replacement == rows.draft)
    plain = table.by_equality[rows.slot] | inputs.copies[rows.lane]
    return (
        torch.where(plain, p_draft, ratio),
        rows.judges & torch.where(plain, equal, stands),
        torch.where(plain | ~rows.judges, token, replacement),
    )


def _dense_q(q: torch.Tensor, rows: _Rows, inputs: DeviceRound, vocab: int) -> torch.Tensor:
    """The drafts' distribution over the whole vocabulary [rows, vocab], of the draft that each row judges."""
    chosen = q[rows.lane, rows.depth.clamp(max=q.shape[1] - 1)]
    dense = torch.zeros((chosen.shape[0], vocab), dtype=chosen.dtype, device=chosen.device)
    if inputs.draft_token_ids is None:
        dense[:, : chosen.shape[1]] = chosen
        return dense
    return dense.index_copy_(1, inputs.draft_token_ids, chosen)


def _collect(
    inputs: DeviceRound,
    count: int,
    ratio: torch.Tensor,
    stands: torch.Tensor,
    token: torch.Tensor,
    finite: torch.Tensor,
) -> DeviceOutcome:
    """From answers by row [count] to answers by lane."""
    depths = inputs.drafts.shape[1]
    places = torch.arange(depths + 1, device=inputs.slots.device)
    row_of = (inputs.first_row.unsqueeze(1) + places).clamp(max=count - 1)
    offered = places[:depths] < inputs.rows.unsqueeze(1) - 1
    standing = (stands[row_of[:, :depths]] & offered).long().cumprod(dim=1)
    accepted = standing.sum(dim=1)
    end_row = row_of.gather(1, accepted.unsqueeze(1)).squeeze(1)
    lane_finite = finite[end_row] & (inputs.rows > 0)
    padded = torch.nn.functional.pad(inputs.drafts, (0, 1))
    at_end = torch.where(places == accepted.unsqueeze(1), token[end_row].unsqueeze(1), -1)
    emitted = torch.where(places < accepted.unsqueeze(1), padded, at_end)
    known = offered & finite[row_of[:, :depths]]
    survival = torch.where(known, ratio[row_of[:, :depths]], torch.nan).cumprod(dim=1)
    return DeviceOutcome(
        emitted=torch.where(lane_finite.unsqueeze(1), emitted, -1),
        accepted=torch.where(lane_finite, accepted, 0),
        survival=survival,
        finite=lane_finite,
    )


def _token_at(weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The token [rows] in whose interval each of `draws` [rows] falls, where weights [rows, vocab] lie end to end."""
    ends = weights.cumsum(dim=1, dtype=torch.float64)
    targets = draws.unsqueeze(1) * ends[:, -1:]
    token = torch.searchsorted(ends, targets, right=True).clamp(max=weights.shape[1] - 1)
    # Parallel sums may step back by a rounding, onto a token of weight 0; the likeliest one is always legal.
    legal = weights.gather(1, token) > 0
    return torch.where(legal, token, weights.argmax(dim=1, keepdim=True)).squeeze(1)


def _one_hot(tokens: torch.Tensor, vocab: int) -> torch.Tensor:
    """float32 [rows, vocab] with a 1 at each of `tokens` [rows]."""
    return (torch.arange(vocab, device=tokens.device) == tokens.unsqueeze(1)).float()
