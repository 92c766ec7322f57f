"""Plans and requests of one run whose spans have not ended yet."""

from __future__ import annotations

from collections.abc import Sequence
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
from service.telemetry.otlp import RequestStory, SpanIds, about_run, plan_span, policy_span, request_ids, request_span


class _OpenPlan(NamedTuple):
    plan: PlanCommitted
    links: tuple[SpanIds, ...]
    start: Position


class _OpenRequest(NamedTuple):
    story: RequestStory
    start: Position


class OpenSpans:
    """The open spans of run `run_id`. `about`: resource attributes. `last_ns`: the latest time
    seen, at which lost spans end.
    """

    def __init__(self, run_id: str, clock: RunClock, about: dict[str, str] | None = None) -> None:
        self.run_id = run_id
        self.clock = clock
        self.about = about or {}
        self.last_ns = clock.monotonic_ns
        self._plans: dict[int, _OpenPlan] = {}
        self._requests: dict[str, _OpenRequest] = {}
        self._published: dict[int, tuple[str, ...]] = {}

    def copy(self) -> OpenSpans:
        """A copy to change until the spans are sent."""
        other = OpenSpans(self.run_id, self.clock, self.about)
        other.last_ns = self.last_ns
        other._plans, other._requests = dict(self._plans), dict(self._requests)
        other._published = dict(list(self._published.items())[-64:])
        return other

    def oldest(self) -> Position | None:
        """Where the oldest open plan or request begins in the journal."""
        starts = [item.start for group in (self._plans, self._requests) for item in group.values()]
        return min(starts, default=None)

    def add(self, records: Sequence[Record], start: Position) -> tuple[list[Span], int]:
        """The spans that these records end, and how many records could not become one."""
        spans: list[Span] = []
        failed = 0
        for record in records:
            try:
                self.last_ns = max(self.last_ns, record_ns(record))
                span = self._add(record, start)
                if span is not None:
                    spans.append(span)
            except (ValueError, TypeError, OverflowError):  # a value that OTLP cannot hold
                failed += 1
        return spans, failed

    def lose_all(self) -> list[Span]:
        """End everything that is open as lost."""
        spans = []
        for item in self._plans.values():
            spans.append(plan_span(self.run_id, item.plan, None, self.last_ns, item.links, self.clock.wall))
        for request in self._requests.values():
            spans.append(request_span(self.run_id, request.story, None, self.last_ns, self.clock.wall))
        self._plans, self._requests, self._published = {}, {}, {}
        return spans

    def _add(self, record: Record, start: Position) -> Span | None:
        match record:
            case RunStarted():
                self.about = about_run(record.version, record.host, record.model, record.device)
                self.clock = RunClock(record.wall_ns, record.monotonic_ns)
                self.last_ns = record.monotonic_ns
            case PolicyApplied():
                return policy_span(self.run_id, record, self.clock.wall)
            case RequestArrived():
                self._requests[record.request_id] = _OpenRequest(RequestStory(record), start)
            case RequestAdmitted():
                self._update(record.request_id, admitted=record)
            case RequestFinished():
                request = self._requests.pop(record.request_id, None)
                if request is not None:
                    return request_span(self.run_id, request.story, record, record.finished_ns, self.clock.wall)
            case PlanCommitted():
                links = tuple(dict.fromkeys(self._link(lane.request_id) for lane in record.lanes))
                self._plans[record.fence] = _OpenPlan(record, links, start)
                self._published[record.fence] = tuple(lane.request_id for lane in record.lanes)
            case PlanCompleted():
                plan = self._plans.pop(record.fence, None)
                if plan is not None:
                    return plan_span(self.run_id, plan.plan, record, record.completed_ns, plan.links, self.clock.wall)
            case OutputPublished():
                for lane in record.lanes:
                    self._note_output(record, lane)
            case _:
                pass
        return None

    def _link(self, request_id: str) -> SpanIds:
        request = self._requests.get(request_id)
        return request_ids(self.run_id, request_id, None if request is None else request.story.arrived.trace_id)

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
