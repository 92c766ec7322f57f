"""Records of one transaction gathered into few statements.

Whatever a record says about a plan or request that this same transaction inserts is put into the waiting row;
the rest becomes updates. All inserts run before all updates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from service.journal.records import (
    OutputPublished,
    PlanCommitted,
    PlanCompleted,
    PolicyApplied,
    Record,
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RunEnded,
    RunStarted,
    SchedulerCalls,
    SchedulerCheckpoint,
)
from service.recorder import rows
from service.recorder.decision_log import LogChunks
from service.recorder.rollups import Completion, MinuteSums
from service.recorder.rows import LANE_COLUMN, PLAN_COLUMN, REQUEST_COLUMN, At, Row, ms
from service.recorder.statements import INSERTS, UPDATES, Statements

REMEMBERED = 4096
K = TypeVar("K")
V = TypeVar("V")

_ADMITTED_AT, _CACHED = REQUEST_COLUMN["admitted_at"], REQUEST_COLUMN["cached_tokens"]
_FIRST_OUTPUT_AT, _FINISHED_AT = REQUEST_COLUMN["first_output_at"], REQUEST_COLUMN["finished_at"]
_REQUEST_OUTPUT, _FINISH_REASON = REQUEST_COLUMN["output_tokens"], REQUEST_COLUMN["finish_reason"]
_ERROR, _PREEMPTIONS = REQUEST_COLUMN["error"], REQUEST_COLUMN["preemptions"]
_QUEUE_MS, _PREFILL_MS = REQUEST_COLUMN["queue_ms"], REQUEST_COLUMN["prefill_ms"]
_DECODE_MS, _PUBLISH_MS = REQUEST_COLUMN["decode_ms"], REQUEST_COLUMN["publish_ms"]
_STARTED_NS, _EXPOSED_MS = PLAN_COLUMN["started_ns"], PLAN_COLUMN["exposed_delivery_ms"]
_PLAN_PROMPT, _PLAN_ACCEPTED = PLAN_COLUMN["prompt_tokens"], PLAN_COLUMN["accepted_tokens"]
_DELIVERIES = PLAN_COLUMN["deliveries"]
_LANE_REQUEST = LANE_COLUMN["request_id"]
_OFFERED = LANE_COLUMN["offered_tokens"]
_COMMITTED, _ACCEPTED = LANE_COLUMN["committed_tokens"], LANE_COLUMN["accepted_tokens"]
_DELIVERED, _PUBLISHED_NS = LANE_COLUMN["delivered"], LANE_COLUMN["published_ns"]


class RunMemory:
    """What the sink remembers of the current run, only to spare queries: losing it changes no row.

    `lanes`: request ids of recent plans by fence. `started`: recent requests whose first output is stored.
    """

    def __init__(self, lanes: dict[int, list[str]] | None = None, started: dict[str, None] | None = None) -> None:
        self.lanes = {} if lanes is None else lanes
        self.started = {} if started is None else started

    def copy(self) -> RunMemory:
        """A copy to change until the transaction is committed; forgets all but the last plans and requests."""
        return RunMemory(_recent(self.lanes), _recent(self.started))


def _recent(memory: dict[K, V]) -> dict[K, V]:
    return dict(memory) if len(memory) <= REMEMBERED else dict(list(memory.items())[-REMEMBERED // 2 :])


class NewPlan(NamedTuple):
    """A plan inserted by this transaction."""

    row: Row
    lanes: list[Row]


class Staging:
    """Rows and updates of one transaction for one run. `at` gives the dialect's wall time of a monotonic one."""

    def __init__(self, run_id: str, at: At, memory: RunMemory) -> None:
        self._run_id = run_id
        self._at = at
        self._memory = memory
        self._inserts: dict[str, list[Row]] = {table.name: [] for table in INSERTS}
        self._updates: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self._plans: dict[int, NewPlan] = {}
        self._late: dict[int, Completion] = {}  # ends of plans that an earlier transaction inserted
        self._requests: dict[str, Row] = {}
        self._progress: dict[str, int] = defaultdict(int)
        self._log = LogChunks(run_id)
        self.ended: RunEnded | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            RunStarted: self._run_started,
            RunEnded: self._run_ended,
            PolicyApplied: self._policy_applied,
            RequestArrived: self._arrived,
            RequestAdmitted: self._admitted,
            RequestFinished: self._finished,
            PlanCommitted: self._committed,
            PlanCompleted: self._completed,
            OutputPublished: self._published,
            SchedulerCalls: self._log.add_calls,
            SchedulerCheckpoint: self._log.add_checkpoint,
        }

    def add(self, record: Record) -> None:
        """Stage one record. Raises UnusableRecord or OverflowError, and then staged nothing of it."""
        self._handlers[type(record)](record)

    def execute(self, connection: sa.Connection, statements: Statements) -> None:
        """Run what was staged."""
        minutes = self._minutes(connection, statements)  # before the updates: a plan with an end was counted
        self._inserts["decision_log"] = self._log.rows()
        for table, inserted in self._inserts.items():
            if inserted:
                statements.insert(connection, table, inserted)
        self._updates["progress"] = [(tokens, self._run_id, name) for name, tokens in self._progress.items()]
        for name in UPDATES:
            if self._updates[name]:
                statements.update(connection, name, self._updates[name])
        if minutes:
            statements.add_minutes(connection, minutes)

    def _minutes(self, connection: sa.Connection, statements: Statements) -> list[Row]:
        """What the plans that end in this transaction add to plan_minutes."""
        sums = MinuteSums(self._run_id)
        for plan in self._plans.values():
            sums.add_row(plan.row)
        for fence, *group, cost_ms in statements.running_plans(connection, self._run_id, list(self._late)):
            sums.add(tuple(group), cost_ms, self._late[fence])
        return sums.rows()

    def _run_started(self, record: RunStarted) -> None:
        self._inserts["engine_runs"].append(rows.run_row(record, self._at))

    def _run_ended(self, record: RunEnded) -> None:
        self.ended = record

    def _policy_applied(self, record: PolicyApplied) -> None:
        self._inserts["policy_applications"].append(rows.application_row(self._run_id, record, self._at))

    def _arrived(self, record: RequestArrived) -> None:
        row = rows.request_row(self._run_id, record, self._at)
        self._inserts["requests"].append(row)
        self._requests[record.request_id] = row

    def _admitted(self, record: RequestAdmitted) -> None:
        admitted_at = self._at(record.admitted_ns)
        row = self._requests.get(record.request_id)
        if row is not None:
            row[_ADMITTED_AT], row[_CACHED] = admitted_at, record.cached_tokens
        else:
            self._updates["admitted"].append((admitted_at, record.cached_tokens, self._run_id, record.request_id))

    def _finished(self, record: RequestFinished) -> None:
        first_ns = record.first_output_ns
        first_at = None if first_ns is None else self._at(first_ns)
        values = (
            self._at(record.finished_ns),
            record.output_tokens,
            record.finish_reason,
            rows.text(record.error),
            record.preemptions,
            ms(record.queue_ns),
            ms(record.prefill_ns),
            ms(record.decode_ns),
            ms(record.publish_ns),
        )
        self._memory.started.pop(record.request_id, None)
        row = self._requests.get(record.request_id)
        if row is None:
            self._updates["finished"].append((first_at, *values, self._run_id, record.request_id))
            return
        if row[_FIRST_OUTPUT_AT] is None:
            row[_FIRST_OUTPUT_AT] = first_at
        row[_FINISHED_AT], row[_REQUEST_OUTPUT], row[_FINISH_REASON], row[_ERROR], row[_PREEMPTIONS] = values[:5]
        row[_QUEUE_MS], row[_PREFILL_MS], row[_DECODE_MS], row[_PUBLISH_MS] = values[5:]

    def _committed(self, record: PlanCommitted) -> None:
        run_id, fence = self._run_id, record.fence
        plan = rows.plan_row(run_id, record, self._at)
        lanes = [rows.lane_row(run_id, fence, number, lane) for number, lane in enumerate(record.lanes)]
        others = [rows.alternative_row(run_id, fence, other) for other in record.alternatives]
        self._inserts["plans"].append(plan)
        self._inserts["plan_lanes"].extend(lanes)
        self._inserts["plan_alternatives"].extend(others)
        self._plans[fence] = NewPlan(plan, lanes)
        self._memory.lanes[fence] = [lane.request_id for lane in record.lanes]

    def _completed(self, record: PlanCompleted) -> None:
        outcomes = record.lanes
        self._request_progress(record)
        before_tokens = (
            record.started_ns,
            self._at(record.completed_ns),
            record.completed_ns,
            record.outcome,
            ms(record.device_ns),
            ms(record.wall_ns),
            ms(record.exposed_delivery_ns),
        )
        tokens = (
            sum([lane.consumed_prompt_tokens for lane in outcomes]),
            sum([lane.committed_tokens for lane in outcomes]),
            sum([lane.offered_tokens for lane in outcomes]),
            sum([lane.draft_tokens for lane in outcomes]),
            sum([lane.accepted_tokens for lane in outcomes]),
        )
        plan = self._plans.get(record.fence)
        if plan is None:
            self._late[record.fence] = Completion(before_tokens[1], record.outcome, before_tokens[4], tokens[1])
            key = (self._run_id, record.fence)
            self._updates["completed"].append((*before_tokens, *tokens, *key))
            self._updates["lane_outcomes"].extend(
                (lane.offered_tokens, lane.committed_tokens, lane.accepted_tokens, *key, lane.lane) for lane in outcomes
            )
            return
        plan.row[_STARTED_NS : _EXPOSED_MS + 1] = before_tokens
        plan.row[_PLAN_PROMPT : _PLAN_ACCEPTED + 1] = tokens
        for lane in outcomes:
            if lane.lane < len(plan.lanes):
                row = plan.lanes[lane.lane]
                row[_OFFERED], row[_COMMITTED] = lane.offered_tokens, lane.committed_tokens
                row[_ACCEPTED] = lane.accepted_tokens

    def _request_progress(self, record: PlanCompleted) -> None:
        """Output tokens of requests still running, one update per request and transaction; its finish has the sum."""
        request_ids = self._memory.lanes.get(record.fence)
        for lane in record.lanes:
            tokens = lane.committed_tokens
            if not tokens:
                continue
            if request_ids is None:
                key = (self._run_id, record.fence, lane.lane)
                self._updates["progress_of_lanes"].append((tokens, self._run_id, *key))
            elif lane.lane < len(request_ids):
                self._request_tokens(request_ids[lane.lane], tokens)

    def _request_tokens(self, request_id: str, tokens: int) -> None:
        row = self._requests.get(request_id)
        if row is None:
            self._progress[request_id] += tokens
        elif row[_FINISHED_AT] is None:
            row[_REQUEST_OUTPUT] += tokens

    def _published(self, record: OutputPublished) -> None:
        plan = self._plans.get(record.fence)
        if plan is None:
            key = (self._run_id, record.fence)
            self._updates["deliveries"].append((len(record.lanes), *key))
            self._updates["lane_deliveries"].extend((True, record.published_ns, *key, lane) for lane in record.lanes)
        else:
            plan.row[_DELIVERIES] += len(record.lanes)
            for lane in record.lanes:
                if lane < len(plan.lanes):
                    row = plan.lanes[lane]
                    row[_DELIVERED], row[_PUBLISHED_NS] = True, record.published_ns
        self._first_outputs(record)

    def _first_outputs(self, record: OutputPublished) -> None:
        request_ids = self._memory.lanes.get(record.fence)
        published_at = self._at(record.published_ns)
        for lane in record.lanes:
            if request_ids is None:
                key = (self._run_id, record.fence, lane)
                self._updates["first_outputs_of_lanes"].append((published_at, self._run_id, *key, published_at))
            elif lane < len(request_ids) and request_ids[lane] not in self._memory.started:
                self._first_output(request_ids[lane], published_at)

    def _first_output(self, request_id: str, published_at: object) -> None:
        row = self._requests.get(request_id)
        if row is None:
            self._updates["first_outputs"].append((published_at, self._run_id, request_id, published_at))
        elif row[_FIRST_OUTPUT_AT] is None:
            row[_FIRST_OUTPUT_AT] = published_at
        self._memory.started[request_id] = None
