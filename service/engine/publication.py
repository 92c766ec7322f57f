"""Step 4: hand tokens and answers to the service, after the journal holds what they rest on."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.records import RequestHandle
from service.engine.core import Core
from service.engine.ports import Transport
from service.engine.requests import EngineRequest, phases
from service.ipc.messages import Tokens
from service.journal.records import OutputPublished, RequestFinished


def publish(core: Core, transport: Transport) -> None:
    """Send everything that waits, one message per client; report publications and write endings down.

    The records of this step go into the next iteration's write. That follows at once, but where only publications are
    to be written and both frame slots are taken (see `worker`).
    """
    outbox, core.outbox = core.outbox, {}
    for request in core.touched.values():
        outbox.setdefault(request.client, []).append(_tokens(request))
    gone = [client for client, events in outbox.items() if not transport.send(client, events)]
    if core.touched or gone:
        core.advance()
        _report_outputs(core, gone)
        for client in gone:
            core.drop_client(client)
        for request in core.touched.values():
            if request.ending is not None:
                _write_ending(core, request)
        core.touched.clear()
    core.completed = None


def _tokens(request: EngineRequest) -> Tokens:
    ending = request.ending
    return Tokens(
        request.request_id,
        request.unpublished,
        request.prompt_seen,
        request.output_tokens,
        None if ending is None else ending.reason.value,
        None if ending is None else ending.error,
        request.logprobs or None,
        request.prompt_logprobs or None,
    )


def _report_outputs(core: Core, gone: Sequence[bytes]) -> None:
    """Tell scheduler, journal and metrics which requests' output became visible."""
    handles: list[RequestHandle] = []
    for request in core.touched.values():
        if request.unpublished:
            request.unpublished = []
            if request.client not in gone and core.completed is not None:
                assert request.handle is not None
                handles.append(request.handle)
        if request.logprobs or request.prompt_logprobs:
            request.logprobs, request.prompt_logprobs = [], []
        if request.output_tokens > request.told:  # of a stop token too, so that samples match requests with output
            core.metrics.per_request.published(request, core.now_ns)
            if request.published_ns is None:
                request.first_published_ns = core.now_ns
            request.published_ns, request.told = core.now_ns, request.output_tokens
    if handles and core.completed is not None:
        fence, lane_of = core.completed
        core.scheduler.published_outputs(handles, fence)
        if core.traced:
            core.records.append(OutputPublished(fence, core.now_ns, [lane_of[handle] for handle in handles]))


def _write_ending(core: Core, request: EngineRequest) -> None:
    ending = request.ending
    assert ending is not None
    finished_ns = core.now_ns
    spent = phases(request, ending, finished_ns)
    core.metrics.ended(request, ending.reason, finished_ns)
    core.records.append(
        RequestFinished(
            request.request_id,
            ending.reason.value,
            ending.error,
            request.first_output_ns,
            finished_ns,
            request.output_tokens,
            spent.queue_ns,
            spent.prefill_ns,
            spent.decode_ns,
            spent.publish_ns,
            request.preemptions,
        )
    )
