"""The fields that chat and plain completions share: which are used, which must be left at their neutral value."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from service.api.errors import BadRequest
from service.api.json_body import Body, boolean, check_names, describe, integer, number, stop_strings, text
from service.ipc.messages import Sampling

MAX_TOKENS = 2**31 - 1
USED = frozenset(
    {
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "user",
        "metadata",
        "store",
    }
)
_SHARED_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
COMPLETION_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **_SHARED_NEUTRAL,
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "suffix": ("",),
}
CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **_SHARED_NEUTRAL,
    "logprobs": (False,),
    "top_logprobs": (0,),
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
    """How to answer. `max_tokens` None means the endpoint's default."""

    model: str
    stream: bool
    include_usage: bool
    max_tokens: int | None
    sampling: Sampling
    stop: tuple[str, ...]


def read_options(body: Body, known: Collection[str], neutral: Mapping[str, tuple[Any, ...]]) -> Options:
    """Checks every field but the prompt; raises BadRequest naming the first bad one."""
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
    return Options(
        model=model,
        stream=stream,
        include_usage=_include_usage(body, stream),
        max_tokens=integer(body, "max_tokens", 1, MAX_TOKENS),
        sampling=Sampling(
            temperature=number(body, "temperature", 0, 2, 1.0),
            top_p=number(body, "top_p", 0, 1, 1.0, above=True),
            seed=integer(body, "seed", -(2**63), 2**63 - 1),
        ),
        stop=stop_strings(body),
    )


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


def _include_usage(body: Body, stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise BadRequest(f"stream_options must be an object, not {describe(options)}.", "stream_options")
    if not stream:
        raise BadRequest("stream_options is only allowed when stream is true.", "stream_options")
    check_names(options, {"include_usage", "include_obfuscation"}, "stream_options.")
    boolean(options, "include_obfuscation", "stream_options.include_obfuscation")
    return boolean(options, "include_usage", "stream_options.include_usage")
