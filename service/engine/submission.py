"""A Submit becomes a queued request, or is refused with a reason that tells the client what to change."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

from gpu.device import DeviceLimits, SamplingParameters
from scheduler.errors import InvalidRequest
from scheduler.records import RequestSpec
from scheduler.shapes import GraphKind
from service.engine.core import Core
from service.engine.requests import EngineRequest
from service.ipc.messages import Accepted, Refused, Sampling, Submit
from service.journal.records import RequestArrived, RequestOptions
from service.telemetry.span_ids import request_ids

SAMPLED = 1
"""The W3C trace flags of a request whose caller says nothing."""


def submit(core: Core, client: bytes, message: Submit) -> None:
    """Put the request at the end of the queue and tell its client so."""
    refusal = _refusal(core, message)
    spec = None
    if refusal is None:
        try:
            spec = _spec(core, message)
        except InvalidRequest as error:
            refusal = "invalid", str(error)
    if spec is None or refusal is not None:
        core.metrics.refused()
        core.say(client, Refused(message.request_id, *(refusal or ("invalid", ""))))
        return
    # Times come from another process: keep the phases' sum exact whatever they say.
    arrived_ns = min(max(0, message.arrived_ns), core.now_ns)
    tokenize_ns = min(max(0, message.tokenize_ns), core.now_ns - arrived_ns)
    request = EngineRequest(
        client=client,
        spec=spec,
        prompt=message.prompt_token_ids,
        parameters=_parameters(message),
        stop_token_ids=frozenset(message.stop_token_ids),
        arrived_ns=arrived_ns,
        tokenize_ns=tokenize_ns,
        operation=message.operation,
        trace_id=_trace_context(message.traceparent)[0],
    )
    core.table.enqueue(request)
    core.records.append(_arrival(core, message, request))
    core.say(client, Accepted(request.request_id))


def _arrival(core: Core, message: Submit, request: EngineRequest) -> RequestArrived:
    """What the journal keeps of it. A request without a caller's trace is one by itself, under the id of its span."""
    trace_id, parent_span_id, trace_flags = _trace_context(message.traceparent)
    ids = request_ids(core.ready.run_id, request.request_id, trace_id)
    s = message.sampling
    return RequestArrived(
        request.request_id,
        message.model,
        request.arrived_ns,
        request.tokenize_ns,
        request.spec.prompt_tokens,
        request.spec.max_output_tokens,
        None,
        ids.trace_id.hex(),
        parent_span_id,
        message.operation,
        trace_flags,
        message.tracestate if parent_span_id is not None else None,
        RequestOptions(
            s.temperature,
            s.top_p,
            s.top_k,
            s.presence_penalty,
            s.frequency_penalty,
            s.seed,
            message.stream,
            message.choices,
        ),
    )


def draft_sources(limits: DeviceLimits) -> tuple[str, ...]:
    """Where this device's drafts may come from, as the scheduler names it."""
    if not limits.draft_tokens:
        return ()
    return ("learned", "copy") if limits.learned_drafts else ("copy",)


def _spec(core: Core, message: Submit) -> RequestSpec:
    """The request as the scheduler sees it. Raises InvalidRequest."""
    limits = core.device.limits
    return RequestSpec(
        request_id=message.request_id,
        prompt_tokens=len(message.prompt_token_ids),
        max_output_tokens=message.max_output_tokens,
        context_capacity=limits.context_tokens,
        message_boundaries=tuple(message.message_boundaries),
        host_stop=message.host_stop,
        proposal_sources=draft_sources(limits),
        scored=message.prompt_logprobs is not None,
    )


def _refusal(core: Core, message: Submit) -> tuple[str, str] | None:
    """Why the request cannot be taken, as (code, message)."""
    limits = core.device.limits
    if core.stopping:
        return "stopping", "the server is shutting down"
    if message.request_id in core.table:
        return "duplicate", f"request {message.request_id} is already running"
    why = _prompt_problem(message.prompt_token_ids, limits) or _sampling_problem(message, limits)
    if why is None and message.prompt_logprobs is not None:
        why = _scoring_problem(core)
    if why is None and not 1 <= message.max_output_tokens < 2**31:
        why = f"max_output_tokens is {message.max_output_tokens}; it must be at least 1"
    if why is not None:
        return "invalid", why
    why = _size_problem(len(message.prompt_token_ids), message.max_output_tokens, limits)
    if why is not None:
        return "too_long", why
    if core.table.queued >= core.queue_limit:
        return "queue_full", f"{core.queue_limit} requests already wait; try again later"
    return None


def _prompt_problem(prompt: Sequence[int], limits: DeviceLimits) -> str | None:
    if not prompt or min(prompt) < 0 or max(prompt) >= limits.vocab_size:
        return f"the prompt needs at least one token, and token ids from 0 to {limits.vocab_size - 1}"
    return None


def _size_problem(prompt_tokens: int, max_output_tokens: int, limits: DeviceLimits) -> str | None:
    total = prompt_tokens + max_output_tokens
    if total > limits.context_tokens:
        return (
            f"{prompt_tokens} prompt tokens and up to {max_output_tokens} output tokens exceed the context of "
            f"{limits.context_tokens} tokens; shorten the prompt or lower max_tokens"
        )
    pages = -(-(total + limits.draft_tokens) // limits.page_tokens)
    if pages > limits.kv_pages:
        return (
            f"{total} tokens need {pages} KV pages and the server has {limits.kv_pages} in "
            "all; shorten the prompt, lower max_tokens, or start the server with more --kv-pages"
        )
    return None


def _sampling_problem(message: Submit, limits: DeviceLimits) -> str | None:
    s = message.sampling
    if not (0.0 <= s.temperature < math.inf and 0.0 < s.top_p <= 1.0):
        return "temperature must be 0 or more and top_p above 0 and at most 1"
    if s.top_k < 0 or not 0.0 <= s.min_p <= 1.0:
        return "top_k must be 0 or more and min_p from 0 to 1"
    if not (0.0 < s.repetition_penalty < math.inf):
        return "repetition_penalty must be above 0"
    if not all(map(math.isfinite, (s.presence_penalty, s.frequency_penalty))):
        return "presence_penalty and frequency_penalty must be finite numbers"
    if any(not 0 <= token < limits.vocab_size or not math.isfinite(bias) for token, bias in s.logit_bias):
        return f"logit_bias needs token ids from 0 to {limits.vocab_size - 1} and finite numbers"
    if any(count is not None and not 0 <= count <= limits.vocab_size for count in _counts(message)):
        return f"logprobs and prompt_logprobs must be from 0 to {limits.vocab_size}"
    return None


def _counts(message: Submit) -> tuple[int | None, int | None]:
    return message.logprobs, message.prompt_logprobs


def _scoring_problem(core: Core) -> str | None:
    if any(shape.kind is GraphKind.SCORED_PREFILL for shape in core.scheduler.catalog.shapes):
        return None
    return "this server has no program for the log-probabilities of a prompt"


def _parameters(message: Submit) -> SamplingParameters:
    """The device's form of the options; without a seed one is drawn, for every life of the request."""
    s: Sampling = message.sampling
    return SamplingParameters(
        temperature=s.temperature,
        top_p=s.top_p,
        seed=secrets.randbits(63) if s.seed is None else s.seed,
        top_k=s.top_k,
        min_p=s.min_p,
        repetition_penalty=s.repetition_penalty,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        logit_bias=tuple((token, bias) for token, bias in s.logit_bias),
        reproducible=s.seed is not None,
        logprobs=message.logprobs,
        prompt_logprobs=message.prompt_logprobs,
    )


def _trace_context(traceparent: str | None) -> tuple[str | None, str | None, int]:
    """Trace id, parent span id and flags of a W3C traceparent header, whose form the service has checked."""
    parts = traceparent.split("-") if traceparent else []
    return (parts[1], parts[2], int(parts[3], 16)) if len(parts) >= 4 else (None, None, SAMPLED)
