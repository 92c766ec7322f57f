"""A checked request to its HTTP answer: what the engine is asked for each choice, then JSON or server-sent events."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from typing import Any

import anyio.to_thread
from litestar import Request, Response

from service.api.caller import Caller, caller_in
from service.api.choices import Choices
from service.api.context import ApiContext
from service.api.generation import Generation
from service.api.generation_options import Options
from service.api.openai_objects import Json, Wire, usage
from service.api.pieces import FinishedChoice
from service.api.problems import answer_for
from service.api.prompt_echo import PromptEcho
from service.api.responses import DONE, EventStream, event, json_response
from service.api.sampling_options import sampling_of_choice
from service.ipc.messages import Submit

AnyRequest = Request[Any, Any, Any]
ACCEPT_WAIT_S = 0.25
"""A stream's headers wait this long for the engine to take the request, so that most refusals get their status.

A later refusal is an error event. An engine that is not in the middle of a long graph answers within milliseconds.
"""
INLINE_TOKENS = 500
"""So many tokens are placed or written with their log-probabilities on the event loop; more of them in a thread."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenized prompt. `message_boundaries`: endpoints of a chat's completed messages, in tokens.

    `echo`: the answer begins with the prompt's text.
    """

    token_ids: list[int]
    arrived_ns: int
    tokenize_ns: int
    message_boundaries: list[int]
    echo: bool = False


async def answer(
    request: AnyRequest, context: ApiContext, wire: Wire, options: Options, prompt: Prompt, limit: int
) -> Response[Any]:
    """Have the engine answer with at most `limit` tokens for each choice; 0 answers with the echoed prompt alone.

    The engine always makes a token: for 0 it is asked for one, which is neither published nor counted.
    """
    echoes = await _echoes(context, options, prompt)
    submits = _submits(context, wire, options, prompt, limit, caller_in(request.headers))
    generations: list[Generation] = []
    for submit, echo in zip(submits, echoes, strict=True):
        scorer = generations[0] if generations and echo is not None and options.logprobs is not None else None
        generations.append(Generation(context, submit, options.stop, echo=echo, prompt_only=limit == 0, scorer=scorer))
    choices = Choices(context, generations)
    if options.stream:
        await choices.open(ACCEPT_WAIT_S)
        return EventStream(_events(choices, wire, options), choices.close)
    return await _whole(request, choices, wire)


def _submits(
    context: ApiContext, wire: Wire, options: Options, prompt: Prompt, limit: int, caller: Caller
) -> list[Submit]:
    """One request to the engine for each choice; the first has the answer's own id, and scores the prompt for all."""
    ends = () if options.ignore_eos else context.text_model.stop_token_ids
    stop_token_ids = list(dict.fromkeys((*ends, *options.stop_token_ids)))
    return [
        Submit(
            request_id=f"{wire.id}-{index}" if index else wire.id,
            model=options.model,
            prompt_token_ids=prompt.token_ids,
            max_output_tokens=max(1, limit),
            sampling=sampling_of_choice(options.sampling, index),
            stop_token_ids=stop_token_ids,
            host_stop=bool(options.stop) and limit > 0,
            arrived_ns=prompt.arrived_ns,
            tokenize_ns=prompt.tokenize_ns,
            traceparent=caller.traceparent,
            message_boundaries=prompt.message_boundaries,
            logprobs=options.logprobs if limit > 0 else None,
            prompt_logprobs=None if index else _prompt_logprobs(options, prompt.echo),
            operation=wire.operation,
            tracestate=caller.tracestate,
            stream=options.stream,
            choices=options.choices,
        )
        for index in range(options.choices)
    ]


def _prompt_logprobs(options: Options, echo: bool) -> int | None:
    """How many likeliest tokens the engine reports for the prompt; an echo with log-probabilities shows them."""
    asked = [count for count in (options.prompt_logprobs, options.logprobs if echo else None) if count is not None]
    return max(asked, default=None)


async def _echoes(context: ApiContext, options: Options, prompt: Prompt) -> list[PromptEcho | None]:
    """One for each choice; None where no echo is asked."""
    if not prompt.echo:
        return [None] * options.choices
    ids, decode = prompt.token_ids, context.text_model.decode_prompt
    text, starts = decode(ids) if len(ids) <= INLINE_TOKENS else await anyio.to_thread.run_sync(decode, ids)
    scored = options.logprobs is not None
    return [PromptEcho(text, ids, starts, scored=scored) for _ in range(options.choices)]


async def _events(choices: Choices, wire: Wire, options: Options) -> AsyncGenerator[bytes, None]:
    """The answer as events. Whatever goes wrong is the last event: the status went out long before.

    The usage in a chunk counts the tokens of its own choice, as vLLM's does.
    """

    def chunk(body: Json, output_tokens: int) -> bytes:
        return event({**body, "usage": usage(choices.prompt_tokens, output_tokens)} if options.chunk_usage else body)

    try:
        for index in range(len(choices.generations)):
            opening = wire.opening(index)
            if opening is not None:
                yield chunk(opening, 0)
        async for index, piece in choices.pieces():
            if piece is None:
                ended = choices.generations[index]
                yield chunk(wire.finish(index, ended.finish_reason or "stop"), ended.output_tokens)
            else:
                yield chunk(wire.piece(index, piece), piece.output_tokens)
        if options.include_usage:
            yield event(wire.totals(choices.prompt_tokens, choices.output_tokens))
        yield DONE
    except Exception as error:
        yield event(answer_for(error).openai())


async def _whole(request: AnyRequest, choices: Choices, wire: Wire) -> Response[Any]:
    """The answer in one piece. A client that leaves meanwhile ends the request, as it does for a stream."""
    work = asyncio.create_task(_collect(choices))
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return Response(b"", status_code=499)  # nobody reads it
        finished = work.result()
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)

    def write() -> Response[bytes]:
        return json_response(wire.whole(finished, choices.prompt_tokens, choices.output_tokens))

    reported = sum(len(choice.tokens) + len(choice.prompt_scores) for choice in finished)
    return write() if reported <= INLINE_TOKENS else await anyio.to_thread.run_sync(write)


async def _collect(choices: Choices) -> list[FinishedChoice]:
    try:
        await choices.open(None)
        return await choices.collect()
    finally:
        await choices.close()


async def _disconnected(request: AnyRequest) -> None:
    """Returns when the client has gone. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
