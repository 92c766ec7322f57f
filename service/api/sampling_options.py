"""The fields of a body that say how tokens are drawn and what ends an answer. Everything raises BadRequest."""

from __future__ import annotations

import re

import msgspec

from service.api.errors import BadRequest
from service.api.json_body import Body, describe, integer, number, shown
from service.ipc.messages import Sampling

LOWEST_SEED, HIGHEST_SEED = -(2**63), 2**63 - 1
MOST_TOP_K = 2**31 - 1
MOST_BIASES = 1_024
MOST_STOP_TOKENS = 64
LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY = 0.01, 100.0
PENALTY_LIMIT = 2.0
BIAS_LIMIT = 100.0
SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
    }
)


def read_sampling(body: Body, vocab_size: int) -> Sampling:
    """Every field of SAMPLING_FIELDS, checked; absent and null mean that nothing is changed."""
    top_k = integer(body, "top_k", -1, MOST_TOP_K) or 0
    return Sampling(
        temperature=number(body, "temperature", 0, 2, 1.0),
        top_p=number(body, "top_p", 0, 1, 1.0, above=True),
        seed=integer(body, "seed", LOWEST_SEED, HIGHEST_SEED),
        top_k=max(0, top_k),
        min_p=number(body, "min_p", 0, 1, 0.0),
        repetition_penalty=number(body, "repetition_penalty", LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY, 1.0),
        presence_penalty=number(body, "presence_penalty", -PENALTY_LIMIT, PENALTY_LIMIT, 0.0),
        frequency_penalty=number(body, "frequency_penalty", -PENALTY_LIMIT, PENALTY_LIMIT, 0.0),
        logit_bias=read_logit_bias(body, vocab_size),
    )


def read_logit_bias(body: Body, vocab_size: int) -> list[tuple[int, float]]:
    """`logit_bias`: an object of token ids, written as strings, and numbers from -100 to 100."""
    biases = body.get("logit_bias")
    if biases is None:
        return []
    if not isinstance(biases, dict):
        raise BadRequest(
            f"logit_bias must be an object of token ids and numbers, not {describe(biases)}.", "logit_bias"
        )
    if len(biases) > MOST_BIASES:
        raise BadRequest(f"logit_bias names more than {MOST_BIASES:,} tokens.", "logit_bias")
    return [(_token_id(name, vocab_size), _bias(name, value)) for name, value in biases.items()]


def _token_id(name: str, vocab_size: int) -> int:
    """A token id in its one decimal form, so that no two names mean the same token."""
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", name, flags=re.ASCII) or int(name) >= vocab_size:
        raise BadRequest(
            f"logit_bias names {shown(name, 40)!r}; the names must be token ids from 0 to {vocab_size - 1:,}.",
            "logit_bias",
        )
    return int(name)


def _bias(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -BIAS_LIMIT <= value <= BIAS_LIMIT:
        raise BadRequest(
            f"logit_bias of token {shown(name, 40)} must be a number from {-BIAS_LIMIT:g} to {BIAS_LIMIT:g}, "
            f"not {describe(value)}.",
            "logit_bias",
        )
    return float(value)


def read_stop_token_ids(body: Body, vocab_size: int) -> tuple[int, ...]:
    """`stop_token_ids`: null or up to MOST_STOP_TOKENS token ids."""
    value = body.get("stop_token_ids")
    items = [] if value is None else value
    if (
        not isinstance(items, list)
        or len(items) > MOST_STOP_TOKENS
        or any(type(item) is not int or not 0 <= item < vocab_size for item in items)
    ):
        raise BadRequest(
            f"stop_token_ids must be an array of up to {MOST_STOP_TOKENS} token ids from 0 to {vocab_size - 1:,}.",
            "stop_token_ids",
        )
    return tuple(items)


def sampling_of_choice(sampling: Sampling, index: int) -> Sampling:
    """How choice `index` of several is drawn: as the only choice of a request with seed + index.

    Beyond the largest seed counting goes on at the smallest. Without a seed every choice is drawn by one of its own.
    """
    if sampling.seed is None or index == 0:
        return sampling
    seed = (sampling.seed + index - LOWEST_SEED) % 2**64 + LOWEST_SEED
    return msgspec.structs.replace(sampling, seed=seed)
