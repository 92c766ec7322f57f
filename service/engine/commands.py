"""Step 2: apply what the service asked for, and let queued requests in."""

from __future__ import annotations

import math
import secrets

import msgspec

from gpu.device import PagesExhausted, RequestExceedsPool, SamplingParameters
from scheduler.errors import DuplicateRequest, InvalidPolicy, SlotsFull
from scheduler.policy import PolicyConfig
from scheduler.records import FinishReason, RequestSpec
from service.engine.core import Core
from service.engine.requests import EngineRequest
from service.ipc.messages import (
    Accepted,
    Cancel,
    ConfigurePolicy,
    EngineStopping,
    Hello,
    PolicyAcknowledged,
    Refused,
    Sampling,
    Submit,
    ToEngine,
)
from service.journal.records import PolicyApplied, RequestAdmitted, RequestArrived


def apply_command(core: Core, client: bytes, message: ToEngine) -> None:
    """Carry one message out; its answer leaves after this iteration's journal write."""
    core.clients.add(client)
    match message:
        case Hello():
            core.say(client, EngineStopping() if core.stopping else core.ready)
        case Submit():
            _submit(core, client, message)
        case Cancel():
            _cancel(core, client, message)
        case ConfigurePolicy():
            _configure(core, client, message)


def admit_waiting(core: Core) -> None:
    """Admit queued requests in order of arrival while a slot and their pages are free."""
    while (request := core.table.head) is not None and not core.stopping:
        if pages_needed(core, request.spec) > core.device.free_pages() or not _admit(core, request):
            return


def pages_needed(core: Core, spec: RequestSpec) -> int:
    """KV pages of a request's whole context."""
    limits = core.device.limits
    tokens = min(spec.prompt_tokens + spec.max_output_tokens, limits.context_tokens)
    return -(-tokens // limits.page_tokens)


def _admit(core: Core, request: EngineRequest) -> bool:
    """Give the head of the queue its slot and pages; False when it has to wait."""
    try:
        handle = core.scheduler.admit(request.spec)
    except (SlotsFull, DuplicateRequest):  # a cancelled request of the same id may still be in a running graph
        return False
    try:
        core.device.open_request(
            handle.slot, request.prompt, request.spec.max_output_tokens, _parameters(request.sampling)
        )
    except PagesExhausted:
        core.scheduler.cancel(handle)
        return False
    except RequestExceedsPool as error:
        core.scheduler.cancel(handle)
        core.say(request.client, Refused(request.request_id, "too_long", str(error)))
        core.end(request, FinishReason.ERROR, str(error), core.now_ns)
        return True
    core.table.admit(request, handle)
    core.records.append(RequestAdmitted(request.request_id, handle.slot, handle.generation, core.now_ns, 0))
    return True


def _submit(core: Core, client: bytes, message: Submit) -> None:
    refusal = _refusal(core, message)
    if refusal is not None:
        core.metrics.refused()
        core.say(client, Refused(message.request_id, *refusal))
        return
    # Times come from another process: keep the phases' sum exact whatever they say.
    arrived_ns = min(max(0, message.arrived_ns), core.now_ns)
    tokenize_ns = min(max(0, message.tokenize_ns), core.now_ns - arrived_ns)
    spec = RequestSpec(
        request_id=message.request_id,
        prompt_tokens=len(message.prompt_token_ids),
        max_output_tokens=message.max_output_tokens,
        context_capacity=core.device.limits.context_tokens,
    )
    request = EngineRequest(
        client=client,
        spec=spec,
        prompt=message.prompt_token_ids,
        sampling=message.sampling,
        stop_token_ids=frozenset(message.stop_token_ids),
        arrived_ns=arrived_ns,
        tokenize_ns=tokenize_ns,
    )
    core.table.enqueue(request)
    trace_id, parent_span_id = _trace_context(message.traceparent)
    core.records.append(
        RequestArrived(
            request.request_id,
            message.model,
            arrived_ns,
            tokenize_ns,
            spec.prompt_tokens,
            spec.max_output_tokens,
            None,
            trace_id,
            parent_span_id,
        )
    )
    core.say(client, Accepted(request.request_id))


def _refusal(core: Core, message: Submit) -> tuple[str, str] | None:
    """Why the request cannot be taken, as (code, message)."""
    limits = core.device.limits
    prompt = message.prompt_token_ids
    if core.stopping:
        return "stopping", "the server is shutting down"
    if message.request_id in core.table:
        return "duplicate", f"request {message.request_id} is already running"
    if not prompt or min(prompt) < 0 or max(prompt) >= limits.vocab_size:
        return "invalid", f"the prompt needs at least one token, and token ids from 0 to {limits.vocab_size - 1}"
    if not 1 <= message.max_output_tokens < 2**31:
        return "invalid", f"max_output_tokens is {message.max_output_tokens}; it must be at least 1"
    sampling = message.sampling
    if not (0.0 <= sampling.temperature < math.inf and 0.0 < sampling.top_p <= 1.0):
        return "invalid", "temperature must be 0 or more and top_p above 0 and at most 1"
    total = len(prompt) + message.max_output_tokens
    if total > limits.context_tokens:
        return "too_long", (
            f"{len(prompt)} prompt tokens and up to {message.max_output_tokens} output tokens exceed the context of "
            f"{limits.context_tokens} tokens; shorten the prompt or lower max_tokens"
        )
    if -(-total // limits.page_tokens) > limits.kv_pages:
        return "too_long", (
            f"{total} tokens need {-(-total // limits.page_tokens)} KV pages and the server has {limits.kv_pages} in "
            "all; shorten the prompt, lower max_tokens, or start the server with more --kv-pages"
        )
    if core.table.queued >= core.queue_limit:
        return "queue_full", f"{core.queue_limit} requests already wait; try again later"
    return None


def _cancel(core: Core, client: bytes, message: Cancel) -> None:
    """Ends the request now; a request that has ended, or is another client's, is left alone."""
    request = core.table.get(message.request_id)
    if request is not None and request.client == client:
        reason = FinishReason.STOP if message.reason == "stop" else FinishReason.ABORT
        core.end(request, reason, None, core.now_ns)


def _configure(core: Core, client: bytes, message: ConfigurePolicy) -> None:
    """All coefficients or none, between two plans."""
    version, newest = message.version, max(message.version, message.withdraws or 0)
    try:
        policy = PolicyConfig.balanced().merged(message.coefficients)
    except InvalidPolicy as error:
        why: str | None = str(error)
    else:
        why = _policy_refusal(core, version, newest, policy)
        if why is None and version != core.policy_version:
            use_policy(core, version, policy)
        if why is None and newest > core.ready.policy_withdrawn and newest > version:
            core.ready = msgspec.structs.replace(core.ready, policy_withdrawn=newest)
    core.say(client, PolicyAcknowledged(version, core.last_fence, why, message.withdraws))


def _policy_refusal(core: Core, version: int, newest: int, policy: PolicyConfig) -> str | None:
    """Why a version does not take effect; `newest` is the highest number that its sender knew of.

    Versions are settled in the order of their numbers, so of two senders the one that knew the higher number knows
    better. That makes the outcome the same in whatever order the messages of several connections arrive.
    """
    current, withdrawn = core.policy_version, core.ready.policy_withdrawn
    if newest < current or (version == current and policy != core.policy):
        return f"the engine already uses policy version {current}"
    if version > current and newest <= withdrawn:
        return f"policy versions up to {withdrawn} were withdrawn; the engine uses version {current}"
    return None


def use_policy(core: Core, version: int, policy: PolicyConfig) -> None:
    """The next plan uses `policy`; written down with the fence after which it holds."""
    core.scheduler.configure_policy(policy)
    core.policy, core.policy_version = policy, version
    core.ready = msgspec.structs.replace(core.ready, policy_version=version)
    core.metrics.policy(version, policy)
    core.records.append(PolicyApplied(version, core.last_fence, core.now_ns, dict(policy.as_dict())))


def _parameters(sampling: Sampling) -> SamplingParameters:
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
    return SamplingParameters(sampling.temperature, sampling.top_p, seed)


def _trace_context(traceparent: str | None) -> tuple[str | None, str | None]:
    """Trace id and parent span id of a W3C traceparent header, whose form the service has checked."""
    parts = traceparent.split("-") if traceparent else []
    return (parts[1], parts[2]) if len(parts) >= 4 else (None, None)
