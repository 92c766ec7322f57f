"""Prompts into token ids that fit the model's context."""

from __future__ import annotations

import time
from typing import Protocol

import anyio.to_thread

from service.api.context import ApiContext
from service.api.errors import BadRequest, ContextExceeded
from service.ipc.messages import EngineReady

INLINE_CHARACTERS = 4_000
"""Shorter texts are tokenized on the event loop (under 5 ms); longer ones in a thread."""


def context_limit(ready: EngineReady) -> int:
    """Most tokens, prompt and answer together, that one request can ever hold: the context, or all KV pages."""
    return min(ready.context_tokens, ready.kv_pages * ready.page_tokens)


MAX_TOKENIZE_BYTES = 256 << 10
"""Longest text that /v1/tokenize takes, in UTF-8 bytes."""


class Bound(Protocol):
    """Refuses a text that is certainly too long, before it is tokenized."""

    def __call__(self, text: str, param: str) -> None:
        """Raises ContextExceeded or BadRequest."""


def context_bound(context: ApiContext, ready: EngineReady) -> Bound:
    """Refuses what cannot fit the context even if every token were the vocabulary's longest.

    Tokenizing 4 MiB takes seconds and most of a gigabyte; this takes milliseconds.
    """
    limit = context_limit(ready)

    def check(text: str, param: str) -> None:
        least = context.text_model.least_tokens(text)
        if least >= limit:
            raise _too_long(limit, f"at least {least:,}", param)

    return check


def tokenize_bound(text: str, param: str) -> None:
    """The limit of /v1/tokenize, which needs no engine and so has no context to go by."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_TOKENIZE_BYTES:
        raise BadRequest(
            f"/v1/tokenize takes at most {MAX_TOKENIZE_BYTES:,} bytes of text (a limit of this address alone, not of "
            f"the model) and {param} has {size:,}; send it in pieces.",
            param,
            "text_too_long",
        )


async def tokenize_chat(context: ApiContext, messages: list[dict[str, str]], bound: Bound) -> tuple[list[int], int]:
    """Token ids of the rendered chat and the nanoseconds it took.

    The bound is applied to the rendered text: templates may trim messages or leave some out.
    Raises TemplateError, QueueFull and what `bound` raises.
    """
    size = sum(len(message["content"]) + 50 for message in messages)
    model = context.text_model

    def render() -> str:
        text = model.render_chat(messages)
        bound(text, "messages")
        return text

    with context.tokenize_place():
        began = time.monotonic_ns()
        text = render() if size <= INLINE_CHARACTERS else await anyio.to_thread.run_sync(render)
        ids = await _encode(context, text, False, "messages")
        return ids, time.monotonic_ns() - began


async def tokenize_prompt(context: ApiContext, prompt: str | list[int], bound: Bound) -> tuple[list[int], int]:
    """Token ids of a plain prompt, and the nanoseconds it took. Raises QueueFull and what `bound` raises."""
    if isinstance(prompt, list):
        return prompt, 0
    bound(prompt, "prompt")
    with context.tokenize_place():
        began = time.monotonic_ns()
        ids = await _encode(context, prompt, True, "prompt")
        return ids, time.monotonic_ns() - began


async def _encode(context: ApiContext, text: str, add_special_tokens: bool, param: str) -> list[int]:
    def encode() -> list[int]:
        return context.text_model.encode(text, add_special_tokens=add_special_tokens)

    if len(text) <= INLINE_CHARACTERS:
        ids = encode()
    else:
        ids = await anyio.to_thread.run_sync(encode, limiter=context.tokenize_threads)
    if not ids:
        raise BadRequest(f"{param} holds nothing that the model's vocabulary knows; send some text.", param)
    return ids


def _too_long(limit: int, prompt_tokens: str, param: str) -> ContextExceeded:
    return ContextExceeded(
        f"This model's context is {limit:,} tokens and the prompt has {prompt_tokens}; "
        f"shorten it to {limit - 1:,} or fewer.",
        param,
    )


def output_limit(
    ready: EngineReady, prompt_tokens: int, max_tokens: int | None, default: int | None, param: str
) -> int:
    """How many tokens to generate at most; `default` None means all that is left of the context.

    Raises ContextExceeded when the prompt, or prompt plus max_tokens, do not fit.
    """
    limit = context_limit(ready)
    if prompt_tokens >= limit:
        raise _too_long(limit, f"{prompt_tokens:,}", param)
    left = limit - prompt_tokens
    if max_tokens is None:
        return left if default is None else min(default, left)
    if max_tokens > left:
        raise ContextExceeded(
            f"This model's context is {limit:,} tokens. The prompt has {prompt_tokens:,} and {max_tokens:,} were asked "
            f"for the answer; lower max_tokens to {left:,} or shorten the prompt.",
            "max_tokens",
        )
    return max_tokens
