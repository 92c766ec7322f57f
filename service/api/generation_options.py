"""The fields that chat and plain completions share: which are used, which must be left at their neutral value."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from service.api.errors import BadRequest
from service.api.json_body import Body, boolean, check_names, describe, integer, stop_strings, text
from service.api.sampling_options import SAMPLING_FIELDS, read_sampling, read_stop_token_ids
from service.ipc.messages import Sampling

MAX_TOKENS = 2**31 - 1
MOST_CHOICES = 128
MOST_LOGPROBS = 20
USED = SAMPLING_FIELDS | {
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "n",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "prompt_logprobs",
    "user",
    "metadata",
    "store",
}
_SHARED_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "default"),
    "store": (False,),
}
COMPLETION_NEUTRAL: dict[str, tuple[Any, ...]] = {**_SHARED_NEUTRAL, "suffix": ("",)}
CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **_SHARED_NEUTRAL,
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How to answer. `max_tokens` None means the endpoint's default.

    `choices`: answers to the same prompt. `logprobs` and `prompt_logprobs`: the likeliest tokens to report beside each
    token of the answer and the prompt, from 0 to MOST_LOGPROBS; None reports nothing. `include_usage`: a stream ends
    with the usage of the whole answer; `chunk_usage`: every chunk of it says the usage so far. `ignore_eos`: the
    model's own end tokens do not end the answer, `stop`, `stop_token_ids` and `max_tokens` do.
    """

    model: str
    stream: bool
    include_usage: bool
    chunk_usage: bool
    max_tokens: int | None
    choices: int
    sampling: Sampling
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None


def read_options(
    body: Body,
    known: Collection[str],
    neutral: Mapping[str, tuple[Any, ...]],
    vocab_size: int,
    *,
    logprobs: int | None,
    least_tokens: int = 1,
) -> Options:
    """Checks every field but the prompt and `logprobs`, which each endpoint reads; raises BadRequest naming the first
    bad one.
    """
    check_names(body, {*known, *USED, *neutral})
    _check_neutral(body, neutral)
    model = text(body, "model", 512)
    if not model:
        raise BadRequest("model is missing: name the model to use; GET /v1/models lists it.", "model")
    text(body, "user", 4096)
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise BadRequest(f"metadata must be an object, not {describe(metadata)}.", "metadata")
    stream = boolean(body, "stream")
    include_usage, chunk_usage = _usage_in_stream(body, stream)
    return Options(
        model=model,
        stream=stream,
        include_usage=include_usage,
        chunk_usage=chunk_usage,
        max_tokens=integer(body, "max_tokens", least_tokens, MAX_TOKENS),
        choices=integer(body, "n", 1, MOST_CHOICES) or 1,
        sampling=read_sampling(body, vocab_size),
        stop=stop_strings(body),
        stop_token_ids=read_stop_token_ids(body, vocab_size),
        ignore_eos=boolean(body, "ignore_eos"),
        logprobs=logprobs,
        prompt_logprobs=_prompt_logprobs(body, stream),
    )


def _prompt_logprobs(body: Body, stream: bool) -> int | None:
    count = integer(body, "prompt_logprobs", 0, MOST_LOGPROBS)
    if count is not None and stream:
        raise BadRequest(
            "prompt_logprobs come with the whole answer; leave stream out, or use echo and logprobs of "
            "/v1/completions to stream them.",
            "prompt_logprobs",
        )
    return count


def _check_neutral(body: Body, neutral: Mapping[str, tuple[Any, ...]]) -> None:
    for name, allowed in neutral.items():
        value = body.get(name)
        if value is None or any(
            value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed
        ):
            continue
        values = ", ".join(describe(item) for item in allowed if not isinstance(item, dict | list))
        hint = f"Leave it out or use {values}." if values else "Leave it out."
        raise BadRequest(f"{name} is not supported yet. {hint}", name, "unsupported_parameter")


def _usage_in_stream(body: Body, stream: bool) -> tuple[bool, bool]:
    """`include_usage` and `continuous_usage_stats` of `stream_options`, as vLLM takes them together: usage in every
    chunk comes with the usage at the end, unless the latter is declined; then neither comes.
    """
    options = body.get("stream_options")
    if options is None:
        return False, False
    if not isinstance(options, dict):
        raise BadRequest(f"stream_options must be an object, not {describe(options)}.", "stream_options")
    if not stream:
        raise BadRequest("stream_options is only allowed when stream is true.", "stream_options")
    check_names(options, {"include_usage", "include_obfuscation", "continuous_usage_stats"}, "stream_options.")
    boolean(options, "include_obfuscation", "stream_options.include_obfuscation")
    continuous = boolean(options, "continuous_usage_stats", "stream_options.continuous_usage_stats")
    included = boolean(options, "include_usage", "stream_options.include_usage")
    if options.get("include_usage") is None:
        included = continuous
    return included, included and continuous
