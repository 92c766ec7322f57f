"""The slow twin of the recorder's staging: records applied one after the other to rows in dictionaries."""

from __future__ import annotations

import datetime as dt

from service.journal.records import (
    OutputPublished,
    PlanCommitted,
    PlanCompleted,
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
)

FAR = dt.datetime.max.replace(tzinfo=dt.UTC)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class PlainTables:
    """What requests, plans and plan_lanes hold after some records of one run; its clock is that of the factories."""

    def __init__(self, make) -> None:
        self._offset_ns = make.WALL_NS - make.MONOTONIC_NS
        self.requests: dict[str, dict] = {}
        self.plans: dict[int, dict] = {}
        self.lanes: dict[tuple[int, int], dict] = {}

    def apply(self, record) -> None:
        if isinstance(record, RequestArrived):
            self.requests[record.request_id] = {
                "arrived_at": self._at(record.arrived_ns), "admitted_at": None, "first_output_at": None,
                "finished_at": None, "cached_tokens": 0, "output_tokens": 0, "finish_reason": None, "decode_ms": None,
            }  # fmt: skip
        elif isinstance(record, RequestAdmitted):
            row = self.requests[record.request_id]
            row["admitted_at"], row["cached_tokens"] = self._at(record.admitted_ns), record.cached_tokens
        elif isinstance(record, PlanCommitted):
            self._commit(record)
        elif isinstance(record, PlanCompleted):
            self._complete(record)
        elif isinstance(record, OutputPublished):
            self._publish(record)
        elif isinstance(record, RequestFinished):
            row = self.requests[record.request_id]
            row["first_output_at"] = min(self._at(record.first_output_ns), row["first_output_at"] or FAR)
            row["finished_at"], row["output_tokens"] = self._at(record.finished_ns), record.output_tokens
            row["finish_reason"], row["decode_ms"] = record.finish_reason, record.decode_ns / 1e6

    def _commit(self, record: PlanCommitted) -> None:
        self.plans[record.fence] = {
            "committed_at": self._at(record.committed_ns), "outcome": "in_flight", "completed_at": None,
            "device_ms": None, "output_tokens": 0, "deliveries": 0,
            "offered_tokens": sum(lane.offered_tokens for lane in record.lanes),
        }  # fmt: skip
        for number, lane in enumerate(record.lanes):
            self.lanes[record.fence, number] = {
                "request_id": lane.request_id, "committed_tokens": 0, "delivered": False, "published_ns": None,
                "offered_tokens": lane.offered_tokens,
            }  # fmt: skip

    def _complete(self, record: PlanCompleted) -> None:
        plan = self.plans.get(record.fence)
        if plan is None:
            return
        first_end = plan["completed_at"] is None
        plan["completed_at"], plan["outcome"] = self._at(record.completed_ns), record.outcome
        plan["device_ms"] = record.device_ns / 1e6
        plan["output_tokens"] = sum(outcome.committed_tokens for outcome in record.lanes)
        plan["offered_tokens"] = sum(outcome.offered_tokens for outcome in record.lanes)
        for outcome in record.lanes:
            lane = self.lanes.get((record.fence, outcome.lane))
            if lane is None:
                continue
            lane["committed_tokens"], lane["offered_tokens"] = outcome.committed_tokens, outcome.offered_tokens
            request = self.requests[lane["request_id"]]
            if first_end and request["finished_at"] is None:
                request["output_tokens"] += outcome.committed_tokens

    def _publish(self, record: OutputPublished) -> None:
        plan = self.plans.get(record.fence)
        if plan is None:
            return
        plan["deliveries"] += len(record.lanes)
        for number in record.lanes:
            lane = self.lanes.get((record.fence, number))
            if lane is not None:
                lane["delivered"], lane["published_ns"] = True, record.published_ns
                request = self.requests[lane["request_id"]]
                at = self._at(record.published_ns)
                request["first_output_at"] = min(at, request["first_output_at"] or at)

    def _at(self, ns: int) -> dt.datetime:
        return EPOCH + dt.timedelta(microseconds=(ns + self._offset_ns) // 1000)
