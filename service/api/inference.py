"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import anyio.to_thread
from litestar import Request, Response, post

from service.api.chat_request import read_chat_request
from service.api.completion_request import DEFAULT_MAX_TOKENS, read_completion_request
from service.api.context import ApiContext, context_of
from service.api.errors import ModelNotFound
from service.api.generation import Generation
from service.api.generation_options import Options
from service.api.json_body import Body, parse_object, shown
from service.api.openai_objects import ChatWire, CompletionWire, Wire
from service.api.openapi_bodies import ChatOperation, CompletionOperation
from service.api.problems import answer_for
from service.api.prompts import context_bound, output_limit, tokenize_chat, tokenize_prompt
from service.api.responses import DONE, EventStream, event, json_response
from service.api.traceparent import checked_traceparent
from service.ipc.messages import EngineReady, Submit

AnyRequest = Request[Any, Any, Any]
T = TypeVar("T")
INLINE_BYTES = 64 << 10
"""Smaller bodies are read on the event loop, in well under a millisecond."""
ACCEPT_WAIT_S = 0.25
"""A stream's headers wait this long for the engine to take the request, so that most refusals get their status.

A later refusal is an error event. An engine that is not in the middle of a long graph answers within milliseconds.
"""


@post("/v1/chat/completions", status_code=200, operation_class=ChatOperation, tags=["inference"])
async def chat_completions(request: AnyRequest) -> Response[Any]:
    """The assistant's answer to a chat; server-sent events when `stream` is true."""
    arrived_ns = time.monotonic_ns()
    context = context_of(request)
    chat = await _read(await request.body(), read_chat_request)
    check_model(context, chat.options.model)
    ready = context.require_engine()
    ids, tokenize_ns = await tokenize_chat(context, chat.messages, context_bound(context, ready))
    limit = output_limit(ready, len(ids), chat.options.max_tokens, None, "messages")
    wire = ChatWire(chat.options.model)
    submit = _submit(request, context, wire, chat.options, ids, limit, arrived_ns, tokenize_ns)
    return await _answer(request, context, wire, chat.options, submit)


@post("/v1/completions", status_code=200, operation_class=CompletionOperation, tags=["inference"])
async def completions(request: AnyRequest) -> Response[Any]:
    """A prompt continued; server-sent events when `stream` is true."""
    arrived_ns = time.monotonic_ns()
    context = context_of(request)
    vocab_size = context.text_model.vocab_size
    completion = await _read(await request.body(), lambda body: read_completion_request(body, vocab_size))
    check_model(context, completion.options.model)
    ready: EngineReady = context.require_engine()
    ids, tokenize_ns = await tokenize_prompt(context, completion.prompt, context_bound(context, ready))
    limit = output_limit(ready, len(ids), completion.options.max_tokens, DEFAULT_MAX_TOKENS, "prompt")
    wire = CompletionWire(completion.options.model)
    submit = _submit(request, context, wire, completion.options, ids, limit, arrived_ns, tokenize_ns)
    return await _answer(request, context, wire, completion.options, submit)


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


def _submit(
    request: AnyRequest,
    context: ApiContext,
    wire: Wire,
    options: Options,
    ids: list[int],
    limit: int,
    arrived_ns: int,
    tokenize_ns: int,
) -> Submit:
    return Submit(
        request_id=wire.id,
        model=options.model,
        prompt_token_ids=ids,
        max_output_tokens=limit,
        sampling=options.sampling,
        stop_token_ids=list(context.text_model.stop_token_ids),
        host_stop=bool(options.stop),
        arrived_ns=arrived_ns,
        tokenize_ns=tokenize_ns,
        traceparent=checked_traceparent(request.headers.get("traceparent")),
    )


async def _answer(
    request: AnyRequest, context: ApiContext, wire: Wire, options: Options, submit: Submit
) -> Response[Any]:
    generation = Generation(context, submit, options.stop)
    if options.stream:
        await generation.open(ACCEPT_WAIT_S)
        return EventStream(_events(generation, wire, options.include_usage), generation.close)
    return await _whole(request, generation, wire)


async def _events(generation: Generation, wire: Wire, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """The answer as events. Whatever goes wrong is the last event: the status went out long before."""
    try:
        opening = wire.opening(include_usage)
        if opening is not None:
            yield event(opening)
        async for text in generation.pieces():
            yield event(wire.piece(text, include_usage))
        yield event(wire.finish(generation.finish_reason or "stop", include_usage))
        if include_usage:
            yield event(wire.totals(generation.prompt_tokens, generation.output_tokens))
        yield DONE
    except Exception as error:
        yield event(answer_for(error).openai())


async def _whole(request: AnyRequest, generation: Generation, wire: Wire) -> Response[Any]:
    """The answer in one piece. A client that leaves meanwhile ends the request, as it does for a stream."""
    work = asyncio.create_task(_collect(generation))
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return Response(b"", status_code=499)  # nobody reads it
        text = work.result()
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)
    reason = generation.finish_reason or "stop"
    return json_response(wire.whole(text, reason, generation.prompt_tokens, generation.output_tokens))


async def _collect(generation: Generation) -> str:
    try:
        await generation.open(None)
        return "".join([text async for text in generation.pieces()])
    finally:
        await generation.close()


async def _disconnected(request: AnyRequest) -> None:
    """Returns when the client has gone. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
