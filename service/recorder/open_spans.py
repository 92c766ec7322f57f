"""Plans and requests of one run whose spans have not ended yet."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from service.journal.reader import Position
from service.journal.records import (
    OutputPublished,
    PlanCommitted,
    PlanCompleted,
    PolicyApplied,
    Record,
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RunStarted,
)
from service.recorder.clock import RunClock
from service.recorder.gauges import record_ns
from service.telemetry.otlp import (
    PLAN_ATTRIBUTES_KEPT,
    RequestStory,
    SpanIds,
    about_run,
    plan_ids,
    plan_span,
    policy_ids,
    policy_span,
    request_ids,
    request_name,
    request_span,
)
from service.telemetry.plan_encoding import encode_link, encode_plan
from service.telemetry.sampling import SpanSampler
from service.telemetry.span_limits import NO_LIMITS, SpanLimits, apply_limits

_PUBLISHED_KEPT = 64
"""Plans whose lanes' requests are remembered for their publications, which follow soon."""
_UNUSABLE = (ValueError, TypeError, OverflowError, struct.error)
"""What building a span raises of a value that OTLP cannot hold."""


class SpanOptions(NamedTuple):
    """What users of OpenTelemetry set: which spans are sent, what they are cut down to, and who sends them."""

    sampler: SpanSampler = SpanSampler()
    limits: SpanLimits = NO_LIMITS
    resource: Mapping[str, Any] = {}


class Ended(NamedTuple):
    """Encoded spans that have ended, what cannot become one, and requests that have no beginning."""

    spans: list[bytes]
    failed: int
    headless: int


class _Link(NamedTuple):
    """A request's span, as ids and as an encoded link."""

    ids: SpanIds
    encoded: bytes


class _OpenPlan(NamedTuple):
    plan: PlanCommitted
    served: tuple[_Link, ...]
    start: Position
    sent: bool


class _OpenRequest(NamedTuple):
    story: RequestStory
    link: _Link
    start: Position
    sent: bool


class OpenSpans:
    """The open spans of run `run_id`. `about`: resource attributes. `last_ns`: the latest time seen, at which lost
    spans end. `whole`: the run's records are known from its start, so that an end without a beginning is a loss.
    """

    def __init__(
        self,
        run_id: str,
        clock: RunClock,
        about: dict[str, str] | None = None,
        options: SpanOptions | None = None,
        whole: bool = False,
    ) -> None:
        self.run_id = run_id
        self.clock = clock
        self.about = about or {}
        self.last_ns = clock.monotonic_ns
        self._options = options or SpanOptions()
        self._limited = self._options.limits != NO_LIMITS
        self._whole = whole
        self._plans: dict[int, _OpenPlan] = {}
        self._requests: dict[str, _OpenRequest] = {}
        self._published: dict[int, tuple[str, ...]] = {}
        self._ended: list[bytes] = []
        self._headless = 0
        self._failed = 0

    def copy(self) -> OpenSpans:
        """A copy to change until the spans are sent."""
        other = OpenSpans(self.run_id, self.clock, self.about, self._options, self._whole)
        other.last_ns = self.last_ns
        other._plans, other._requests = dict(self._plans), dict(self._requests)
        other._published = dict(list(self._published.items())[-_PUBLISHED_KEPT:])
        return other

    def oldest(self) -> Position | None:
        """Where the oldest open plan or request begins in the journal."""
        starts = [item.start for group in (self._plans, self._requests) for item in group.values()]
        return min(starts, default=None)

    def add(self, records: Sequence[Record], start: Position) -> Ended:
        """What these records end. A span that the sampler does not take ends without a trace here."""
        for record in records:
            self._try(functools.partial(self._take, record, start))
        return self._taken()

    def lose_all(self) -> Ended:
        """End everything that is open as lost. One that cannot become a span costs only itself, as in `add`."""
        for plan in self._plans.values():
            self._try(functools.partial(self._end_plan, plan, None))
        for request in self._requests.values():
            self._try(functools.partial(self._end_request, request, None))
        self._plans, self._requests, self._published = {}, {}, {}
        return self._taken()

    def _try(self, step: Callable[[], None]) -> None:
        """What cannot become a span costs only itself, and is counted."""
        try:
            step()
        except _UNUSABLE:
            self._failed += 1

    def _taken(self) -> Ended:
        """What has ended since the last call."""
        ended = Ended(self._ended, self._failed, self._headless)
        self._ended, self._failed, self._headless = [], 0, 0
        return ended

    def _take(self, record: Record, start: Position) -> None:
        self.last_ns = max(self.last_ns, record_ns(record))
        self._add(record, start)

    def _add(self, record: Record, start: Position) -> None:
        match record:
            case RunStarted():
                self.about = about_run(record.version, record.host, record.model, record.device)
                self.clock = RunClock(record.wall_ns, record.monotonic_ns)
                self.last_ns = record.monotonic_ns
                self._whole = True
            case PolicyApplied():
                span = policy_span(self.run_id, record, self.clock.wall)
                if self._options.sampler.takes_root(policy_ids(self.run_id, record.version, record.fence), span.name):
                    self._end(span, 0)
            case RequestArrived():
                self._begin_request(record, start)
            case RequestAdmitted():
                self._update(record.request_id, admitted=record)
            case RequestFinished():
                request = self._requests.pop(record.request_id, None)
                if request is None:
                    self._headless += self._whole
                else:
                    self._end_request(request, record)
            case PlanCommitted():
                self._begin_plan(record, start)
            case PlanCompleted():
                self._complete(record)
            case OutputPublished():
                for lane in record.lanes:
                    self._note_output(record, lane)
            case _:
                pass

    def _begin_request(self, record: RequestArrived, start: Position) -> None:
        link = self._link(record.request_id, record.trace_id)
        sent = self._options.sampler.takes_request(link.ids, record, request_name(record))
        self._requests[record.request_id] = _OpenRequest(RequestStory(record), link, start, sent)

    def _end_request(self, request: _OpenRequest, record: RequestFinished | None) -> None:
        if request.sent:
            self._end(request_span(self.run_id, request.story, record, self.last_ns, self.clock.wall), 0)

    def _begin_plan(self, plan: PlanCommitted, start: Position) -> None:
        names = tuple(lane.request_id for lane in plan.lanes)
        served = {name: self._requests.get(name) for name in names}
        links = [self._link(name, None) if request is None else request.link for name, request in served.items()]
        sent = self._options.sampler.takes_root(plan_ids(self.run_id, plan.fence), "helios.plan") or any(
            request is not None and request.sent for request in served.values()
        )
        self._plans[plan.fence] = _OpenPlan(plan, tuple(links), start, sent)
        self._published[plan.fence] = names

    def _complete(self, record: PlanCompleted) -> None:
        """The plan's end; frames complete in order, so the end of any plan before it is missing."""
        for fence in [fence for fence in self._plans if fence < record.fence]:
            self._try(functools.partial(self._end_plan, self._plans.pop(fence), None))
        plan = self._plans.pop(record.fence, None)
        if plan is not None:
            self._end_plan(plan, record)

    def _end_plan(self, item: _OpenPlan, record: PlanCompleted | None) -> None:
        if not item.sent:
            return
        wall = self.clock.wall
        if not self._limited:
            links = [link.encoded for link in item.served]
            self._ended.append(encode_plan(self.run_id, item.plan, record, self.last_ns, links, wall))
        else:
            ids = [link.ids for link in item.served]
            self._end(plan_span(self.run_id, item.plan, record, self.last_ns, ids, wall), PLAN_ATTRIBUTES_KEPT)

    def _end(self, span: Span, kept: int) -> None:
        if self._limited:
            apply_limits(span, self._options.limits, kept)
        self._ended.append(span.SerializeToString())

    def _link(self, request_id: str, trace_id: str | None) -> _Link:
        ids = request_ids(self.run_id, request_id, trace_id)
        return _Link(ids, encode_link(*ids))

    def _note_output(self, record: OutputPublished, lane: int) -> None:
        names = self._published.get(record.fence, ())
        if lane < len(names):
            request = self._requests.get(names[lane])
            if request is not None and request.story.first_output_ns is None:
                self._update(names[lane], first_output_ns=record.published_ns)

    def _update(self, request_id: str, **changes: Any) -> None:
        request = self._requests.get(request_id)
        if request is not None:
            self._requests[request_id] = request._replace(story=request.story._replace(**changes))
