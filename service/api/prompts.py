"""Prompts into token ids that fit the model's context."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

from service.api.context import ApiContext
from service.api.errors import BadRequest, ContextExceeded
from service.ipc.messages import EngineReady

T = TypeVar("T")
INLINE_CHARACTERS = 4_000
"""Shorter texts are tokenized on the event loop (under 5 ms); longer ones in a thread."""


def context_limit(ready: EngineReady) -> int:
    """Most tokens, prompt and answer together, that one request can ever hold: the context, or all KV pages."""
    return min(ready.context_tokens, ready.kv_pages * ready.page_tokens)


async def tokenize_chat(context: ApiContext, messages: list[dict[str, str]]) -> tuple[list[int], int]:
    """Token ids of the rendered chat and the nanoseconds it took. Raises TemplateError."""
    size = sum(len(message["content"]) + 50 for message in messages)
    model = context.text_model
    return await _timed(size, lambda: model.encode(model.render_chat(messages), add_special_tokens=False), "messages")


async def tokenize_prompt(context: ApiContext, prompt: str | list[int]) -> tuple[list[int], int]:
    """Token ids of a plain prompt, and the nanoseconds it took."""
    if isinstance(prompt, list):
        return prompt, 0
    return await _timed(len(prompt), lambda: context.text_model.encode(prompt, add_special_tokens=True), "prompt")


async def _timed(size: int, encode: Callable[[], list[int]], param: str) -> tuple[list[int], int]:
    began = time.monotonic_ns()
    ids = encode() if size <= INLINE_CHARACTERS else await anyio.to_thread.run_sync(encode)
    if not ids:
        raise BadRequest(f"{param} holds nothing that the model's vocabulary knows; send some text.", param)
    return ids, time.monotonic_ns() - began


def output_limit(
    ready: EngineReady, prompt_tokens: int, max_tokens: int | None, default: int | None, param: str
) -> int:
    """How many tokens to generate at most; `default` None means all that is left of the context.

    Raises ContextExceeded when the prompt, or prompt plus max_tokens, do not fit.
    """
    limit = context_limit(ready)
    if prompt_tokens >= limit:
        raise ContextExceeded(
            f"This model's context is {limit:,} tokens and the prompt has {prompt_tokens:,}; "
            f"shorten it to {limit - 1:,} or fewer.",
            param,
        )
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
