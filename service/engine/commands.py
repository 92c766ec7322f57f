"""Step 2, first half: apply what the service asked for."""

from __future__ import annotations

import msgspec

from scheduler.errors import InvalidPolicy
from scheduler.policy import PolicyConfig
from scheduler.records import FinishReason, RequestHandle
from service.engine.core import Core
from service.engine.requests import EngineRequest
from service.engine.submission import submit
from service.ipc.messages import Cancel, ConfigurePolicy, EngineStopping, Hello, PolicyAcknowledged, Submit, ToEngine
from service.journal.records import PolicyApplied


def apply_command(core: Core, client: bytes, message: ToEngine) -> None:
    """Carry one message out; its answer leaves after this iteration's journal write."""
    core.clients.add(client)
    match message:
        case Hello():
            core.say(client, EngineStopping() if core.stopping else core.ready)
        case Submit():
            submit(core, client, message)
        case Cancel():
            _cancel(core, client, message)
        case ConfigurePolicy():
            _configure(core, client, message)


def _cancel(core: Core, client: bytes, message: Cancel) -> None:
    """Ends the request now; a request that has ended, or is another client's, is left alone."""
    request = core.table.get(message.request_id)
    if request is None or request.client != client:
        return
    if message.reason != "stop":
        core.end(request, FinishReason.ABORT, None, core.now_ns)
    elif request.handle is None or not _keeps_answer(request, message.answer_tokens):
        core.end(request, FinishReason.STOP, None, core.now_ns)
    else:
        _finish(core, request, request.handle, message.answer_tokens)


def _keeps_answer(request: EngineRequest, answer_tokens: int | None) -> bool:
    """Whether a state that ends with the answer can still be made: output of earlier lives is part of this prompt."""
    return answer_tokens is None or answer_tokens >= request.emitted_before


def _finish(core: Core, request: EngineRequest, handle: RequestHandle, answer_tokens: int | None) -> None:
    """A stop string ends an answer like a stop token, but for what was computed of the string and behind it."""
    core.scheduler.finish(handle)
    core.settle(request, FinishReason.STOP, None, core.now_ns)
    if handle in core.leaving and answer_tokens is not None:
        core.leaving[handle] = min(core.leaving[handle], request.prompt_length + answer_tokens)


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
