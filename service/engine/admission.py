"""Step 2, second half: let queued requests in, in their order, while a slot and their KV pages can be had.

A request that its pages keep out blocks those behind it: they would otherwise take the pages that it waits for. Only a
preempted one, which waits for more than a prompt's pages and so for longer, is passed: by requests that fit to their
ends beside everything that the residents may still need, so that nobody is preempted for them, and by MOST_PASSES of
them at the most, so that its turn comes.
"""

from __future__ import annotations

import contextlib
import dataclasses

from gpu.device import InvalidRequest, PagesExhausted, RequestExceedsPool
from scheduler.errors import AdmissionError, DuplicateRequest, SlotsFull, SnapshotPending
from scheduler.records import LONGEST_WAIT_NS, FinishReason, RequestHandle, RequestSpec
from service.engine.core import Core
from service.engine.requests import EngineRequest
from service.ipc.messages import Refused
from service.journal.records import RequestAdmitted

MOST_PASSES = 16
"""So many requests are let in before a preempted one that came before them, each time that it waits."""


def admit_waiting(core: Core) -> None:
    """Admit from the queue's front until one has to wait that must not be passed."""
    waiting: list[EngineRequest] = []
    while (request := core.table.queued_at(len(waiting))) is not None and not core.stopping:
        if core.scheduler.resident_count >= core.scheduler.request_slots:
            return
        if _admit(core, request, passes=bool(waiting)):
            if request.handle is not None:
                for passed in waiting:
                    passed.passes += 1
        elif request.preemptions and request.passes < MOST_PASSES:
            waiting.append(request)
        else:
            return
        if any(passed.passes >= MOST_PASSES for passed in waiting):
            return


def pages_for(core: Core, tokens: int) -> int:
    """KV pages that hold `tokens` tokens of one request."""
    return -(-tokens // core.device.limits.page_tokens)


def pages_wanted(core: Core, request: EngineRequest, passes: bool = False) -> int:
    """KV pages that must be had together before the request is let in.

    Where pages are taken as frames need them: a prompt and its first output token, after what the prompts of all
    residents still need. A preempted request, and one that passes such a one, needs all that it and they may ever need.
    """
    whole = passes or request.preemptions > 0 or not core.grows
    wanted = pages_for(core, _target(core, request, whole))
    if core.grows:
        wanted += sum(
            max(0, pages_for(core, _target(core, other, whole)) - pages_for(core, other.cached_now))
            for other in core.table.residents()
        )
    return wanted


def _target(core: Core, request: EngineRequest, whole: bool) -> int:
    """Tokens that need pages: all that may come, with a round's drafts; or the prompt and its first output token."""
    return request.whole_tokens + core.device.limits.draft_tokens if whole else request.spec.prompt_tokens + 1


def _admit(core: Core, request: EngineRequest, passes: bool) -> bool:
    """Give a queued request its slot and pages; False when it has to wait."""
    wanted = pages_wanted(core, request, passes)
    spare = core.device.free_pages() - wanted
    if spare <= request.refused_at and core.scheduler.resident_count:
        return False  # it did not fit before, and nothing was given back since
    core.count_resources()
    starts = [_cached_tokens(core, request)]
    if starts[0] and not core.scheduler.resident_count:
        # Nobody will give pages back: it must fit without the cached state, whose last page is held beside its own.
        starts.append(0)
    for cached in starts:
        with contextlib.suppress(PagesExhausted):
            return _enter(core, request, cached, wanted)
    request.refused_at = spare
    return False


def _cached_tokens(core: Core, request: EngineRequest) -> int:
    """A prompt that is to be scored must run whole, and a device without state graphs caches nothing."""
    if not core.grows or request.spec.scored:
        return 0
    return core.device.match_prefix(request.prompt + request.output)


def _enter(core: Core, request: EngineRequest, cached: int, wanted: int) -> bool:
    """Admit or refuse a request that starts from `cached` tokens and wants `wanted` pages; False when it has to wait.

    Raises PagesExhausted when its pages cannot be had; nothing is held then.
    """
    wanted -= pages_for(core, cached)
    if wanted > core.device.free_pages():
        raise PagesExhausted(f"the request needs {wanted} KV pages more")
    waited_ns = min(core.now_ns - request.arrived_ns, LONGEST_WAIT_NS)
    spec = dataclasses.replace(request.spec, cached_tokens=cached, waited_ns=waited_ns)
    try:
        handle = core.scheduler.admit(spec)
    except (SlotsFull, DuplicateRequest, SnapshotPending):  # its id may still be in a running graph
        return False
    except AdmissionError as error:
        _refuse(core, request, "invalid", str(error))
        return True
    try:
        _open(core, request, handle, spec)
    except PagesExhausted:
        core.scheduler.cancel(handle)
        raise
    except (RequestExceedsPool, InvalidRequest) as error:
        core.scheduler.cancel(handle)
        _refuse(core, request, "too_long" if isinstance(error, RequestExceedsPool) else "invalid", str(error))
        return True
    if cached and wanted > core.device.free_pages():
        # The cached prefix counted as free until now: beside it there is not enough left for the rest.
        core.scheduler.cancel(handle)
        core.device.close_request(handle.slot)
        raise PagesExhausted(f"the request needs {wanted} KV pages beside its cached prefix")
    _admitted(core, request, handle, spec)
    return True


def _open(core: Core, request: EngineRequest, handle: RequestHandle, spec: RequestSpec) -> None:
    parameters = request.parameters
    if parameters.prompt_logprobs is not None and not spec.scored:  # told in an earlier life
        parameters = dataclasses.replace(parameters, prompt_logprobs=None)
    core.device.open_request(
        handle.slot,
        request.prompt + request.output,
        spec.max_output_tokens,
        parameters,
        cached_tokens=spec.cached_tokens,
        boundaries=spec.message_boundaries,
        emitted_before=request.emitted_before,
    )


def _admitted(core: Core, request: EngineRequest, handle: RequestHandle, spec: RequestSpec) -> None:
    """A request is admitted once, as the client sees it: later lives are no news."""
    request.spec = spec
    core.table.admit(request, handle)
    request.consume(spec.cached_tokens)
    if not core.grows:
        request.prompt = []
    if request.preemptions == 0:
        core.metrics.prefix(spec.cached_tokens, spec.prompt_tokens - spec.cached_tokens)
        core.records.append(
            RequestAdmitted(request.request_id, handle.slot, handle.generation, core.now_ns, spec.cached_tokens)
        )


def _refuse(core: Core, request: EngineRequest, code: str, why: str) -> None:
    """What the checks at its arrival could not know: it can never run here."""
    core.say(request.client, Refused(request.request_id, code, why))
    core.end(request, FinishReason.ERROR, why, core.now_ns)
