"""The rules by which other servers fill a step, as pure functions of what is resident.

A request is resident from its admission (in order of arrival, while a slot is free) to its last token. A rule sees the
residents in that order and says how many token rows each gets in the next step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from scheduler.records import RequestHandle


@dataclasses.dataclass(slots=True)
class Resident:
    """One admitted request. `prompt_left`: prompt tokens still to compute; `output_left`: output tokens to come."""

    handle: RequestHandle
    request_id: str
    prompt_left: int
    output_left: int


Share = tuple[Resident, int]
"""A resident and its token rows in the next step: prompt tokens, or a pending token and its drafts."""

Rule = Callable[[Sequence[Resident], Sequence[Resident]], list[Share]]
"""(decoders, prompts), each in order of admission -> the shares of the next step; empty when nothing can run."""


def chunked_prefill(budget: int, decode_rows: int = 1, prompts_per_step: int | None = None) -> Rule:
    """The rule of vLLM: a step of at most `budget` token rows; decoders first, then prompts, several to a step.

    vLLM serves running requests before waiting ones, each with as many tokens as it has left, or as the budget has. A
    prompt is cut only where the budget ends, and nobody behind it is admitted then; so a half-computed prompt always
    stands behind every decoder, and "decoders, then prompts in order" is the same rule.
    `decode_rows`: rows of a decoder, the pending token included. Above 1 it speculates, and drafts count in the budget.
    `prompts_per_step`: how many prompts may share a step; None for as many as fit, which is what vLLM does.
    """

    def shares(decoders: Sequence[Resident], prompts: Sequence[Resident]) -> list[Share]:
        chosen, left = _decoder_shares(decoders, budget, decode_rows)
        return chosen + _prompt_shares(prompts[:prompts_per_step], left)

    return shares


def prefill_first(chunk: int, decode_rows: int = 1) -> Rule:
    """The rule of SGLang: while a prompt is incomplete a step is prompts alone, at most `chunk` tokens; else decoders.

    Prompts and decoders share no step (mixed chunks are off by default).
    """

    def shares(decoders: Sequence[Resident], prompts: Sequence[Resident]) -> list[Share]:
        if prompts:
            return _prompt_shares(prompts, chunk)
        return _decoder_shares(decoders, decode_rows * len(decoders), decode_rows)[0]

    return shares


def _decoder_shares(decoders: Sequence[Resident], budget: int, decode_rows: int) -> tuple[list[Share], int]:
    """The decoders' shares and what is left of the budget; no decoder proposes past its output limit."""
    chosen: list[Share] = []
    if decode_rows == 1 and len(decoders) <= budget:
        return [(resident, 1) for resident in decoders], budget - len(decoders)
    for resident in decoders:
        rows = min(decode_rows, resident.output_left, budget)
        if rows == 0:
            break
        budget -= rows
        chosen.append((resident, rows))
    return chosen, budget


def _prompt_shares(prompts: Sequence[Resident], budget: int) -> list[Share]:
    chosen: list[Share] = []
    for resident in prompts:
        rows = min(resident.prompt_left, budget)
        if rows == 0:
            break
        budget -= rows
        chosen.append((resident, rows))
    return chosen
