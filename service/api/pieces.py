"""What a generation hands over: text that is certain, with the tokens that belong to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from service.ipc.messages import TokenScore


@dataclasses.dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token, the character of the text (echo included) where it begins, and its natural log-probability.

    `logprob` is None where there is none: nothing precedes a prompt's first token. `top`: the likeliest tokens' ids
    with theirs, likeliest first. -inf is possible.
    """

    token_id: int
    start: int
    logprob: float | None
    top: Sequence[tuple[int, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Text, possibly empty, and tokens where log-probabilities are reported. Pieces joined are the answer.

    `output_tokens`: how many the engine had made for this answer when the piece became certain; 0 for an echo.
    """

    text: str
    tokens: tuple[ScoredToken, ...] = ()
    output_tokens: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedChoice:
    """One whole answer. `prompt_scores`: those of every prompt token but the first, where they were asked for."""

    text: str
    tokens: tuple[ScoredToken, ...]
    finish_reason: str
    prompt_scores: Sequence[TokenScore]


def scored(score: TokenScore, start: int) -> ScoredToken:
    """The engine's report of a token that begins at character `start`."""
    token_id, logprob, top = score
    return ScoredToken(token_id, start, logprob, top)
