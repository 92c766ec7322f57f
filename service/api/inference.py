"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import anyio.to_thread
from litestar import Request, Response, post

from service.api.answering import Prompt, answer
from service.api.chat_request import read_chat_request
from service.api.completion_request import DEFAULT_MAX_TOKENS, read_completion_request
from service.api.context import ApiContext, context_of
from service.api.errors import BadRequest, ModelNotFound
from service.api.json_body import Body, parse_object, shown
from service.api.openai_objects import ChatWire, CompletionWire
from service.api.openapi_bodies import ChatOperation, CompletionOperation
from service.api.prompts import context_bound, output_limit, tokenize_chat, tokenize_prompt
from service.ipc.messages import EngineReady

AnyRequest = Request[Any, Any, Any]
T = TypeVar("T")
INLINE_BYTES = 64 << 10
"""Smaller bodies are read on the event loop, in well under a millisecond."""


@post("/v1/chat/completions", status_code=200, operation_class=ChatOperation, tags=["inference"])
async def chat_completions(request: AnyRequest) -> Response[Any]:
    """The assistant's answer to a chat; server-sent events when `stream` is true."""
    arrived_ns = time.monotonic_ns()
    context = context_of(request)
    text_model = context.text_model
    chat = await _read(await request.body(), lambda body: read_chat_request(body, text_model.vocab_size))
    check_model(context, chat.options.model)
    check_choices(context, chat.options.choices)
    ready = context.require_engine()
    ids, tokenize_ns = await tokenize_chat(context, chat.messages, context_bound(context, ready))
    limit = output_limit(ready, len(ids), chat.options.max_tokens, None, "messages")
    prompt = Prompt(ids, arrived_ns, tokenize_ns, text_model.message_boundaries(ids))
    return await answer(request, context, ChatWire(text_model, chat.options), chat.options, prompt, limit)


@post("/v1/completions", status_code=200, operation_class=CompletionOperation, tags=["inference"])
async def completions(request: AnyRequest) -> Response[Any]:
    """A prompt continued; server-sent events when `stream` is true."""
    arrived_ns = time.monotonic_ns()
    context = context_of(request)
    text_model = context.text_model
    completion = await _read(await request.body(), lambda body: read_completion_request(body, text_model.vocab_size))
    options = completion.options
    check_model(context, options.model)
    check_choices(context, options.choices)
    ready: EngineReady = context.require_engine()
    ids, tokenize_ns = await tokenize_prompt(context, completion.prompt, context_bound(context, ready))
    limit = output_limit(ready, len(ids), options.max_tokens, DEFAULT_MAX_TOKENS, "prompt")
    prompt = Prompt(ids, arrived_ns, tokenize_ns, [], completion.echo)
    return await answer(request, context, CompletionWire(text_model, options), options, prompt, limit)


async def _read(data: bytes, read: Callable[[Body], T]) -> T:
    """The checked body; a large one is read in a thread, so that it holds up no stream."""
    if len(data) <= INLINE_BYTES:
        return read(parse_object(data))
    return await anyio.to_thread.run_sync(lambda: read(parse_object(data)))


def check_model(context: ApiContext, name: str) -> None:
    """Raises ModelNotFound unless `name` is the model that is served."""
    if name != context.text_model.name:
        raise ModelNotFound(
            f"The model {shown(name)!r} is not served here; use {context.text_model.name!r} (GET /v1/models lists it)."
        )


def check_choices(context: ApiContext, choices: int) -> None:
    """Raises BadRequest for more answers at once than the server ever takes."""
    if choices > context.most_open:
        raise BadRequest(f"n is {choices} and this server works on at most {context.most_open:,} answers at once.", "n")
