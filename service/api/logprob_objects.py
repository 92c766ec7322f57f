"""Log-probabilities in OpenAI's forms, and those of prompts, which OpenAI has no form for.

JSON has no infinity: a log-probability that is not finite, or below LOWEST_LOGPROB, is given as LOWEST_LOGPROB, the
number that OpenAI's reference and vLLM give to tokens that are as good as impossible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from service.api.pieces import ScoredToken
from service.ipc.messages import TokenScore
from service.text import TextModel

Json = dict[str, Any]
LOWEST_LOGPROB = -9999.0


def finite(logprob: float) -> float:
    """A number that JSON can hold, at least LOWEST_LOGPROB."""
    return max(logprob, LOWEST_LOGPROB) if math.isfinite(logprob) else LOWEST_LOGPROB


def _escaped(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def _chat_token(model: TextModel, token_id: int) -> Json:
    """`token` and `bytes`. Bytes that are not whole UTF-8 are escaped in `token`; special tokens have no `bytes`."""
    text = model.token_text(token_id)
    if isinstance(text, bytes):
        return {"token": _escaped(text), "bytes": list(text)}
    if text is None or model.table.is_special(token_id):
        return {"token": _name(model, token_id), "bytes": None}
    return {"token": text, "bytes": list(text.encode("utf-8"))}


def _name(model: TextModel, token_id: int) -> str:
    """A token as a string: its text, its bytes escaped where that is not whole UTF-8, `token_id:7` without any text."""
    text = model.token_text(token_id)
    if text is None:
        return f"token_id:{token_id}"
    return f"bytes:{_escaped(text)}" if isinstance(text, bytes) else text


def chat_logprobs(model: TextModel, tokens: Sequence[ScoredToken], count: int) -> Json:
    """The `logprobs` of a chat's choice: each token of an answer, with the `count` likeliest in its place."""
    content = [
        {
            **_chat_token(model, token.token_id),
            "logprob": finite(LOWEST_LOGPROB if token.logprob is None else token.logprob),
            "top_logprobs": [
                {**_chat_token(model, token_id), "logprob": finite(logprob)} for token_id, logprob in token.top[:count]
            ],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(model: TextModel, tokens: Sequence[ScoredToken], count: int) -> Json:
    """The `logprobs` of a completion's choice: four lists with an entry for each token, of an echo's too.

    `top_logprobs` holds the `count` likeliest tokens and the one that was taken. A prompt's first token has null.
    """
    return {
        "tokens": [_name(model, token.token_id) for token in tokens],
        "token_logprobs": [None if token.logprob is None else finite(token.logprob) for token in tokens],
        "top_logprobs": [_alternatives(model, token, count) for token in tokens],
        "text_offset": [token.start for token in tokens],
    }


def _alternatives(model: TextModel, token: ScoredToken, count: int) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    found: dict[str, float] = {}
    for token_id, logprob in [*token.top[:count], (token.token_id, token.logprob)]:
        found.setdefault(_name(model, token_id), finite(logprob))  # of two tokens that look alike the likelier
    return found


def prompt_logprobs(model: TextModel, scores: Sequence[TokenScore], count: int) -> list[Json | None]:
    """One entry for each prompt token: null for the first, then token id to its log-probability and text.

    An entry holds the prompt's own token first, then the `count` likeliest in its place. `rank` is 1 for the
    likeliest token, null for a token that is not among those.
    """
    return [None, *(_prompt_entry(model, score, count) for score in scores)]


def _prompt_entry(model: TextModel, score: TokenScore, count: int) -> Json:
    token_id, logprob, top = score[0], score[1], score[2][:count]
    ranks = {likely: rank for rank, (likely, _) in enumerate(top, start=1)}
    return {
        str(found): {"logprob": finite(value), "rank": ranks.get(found), "decoded_token": _name(model, found)}
        for found, value in dict([(token_id, logprob), *top]).items()
    }
