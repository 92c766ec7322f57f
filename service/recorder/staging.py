"""Records of one transaction gathered into few statements.

Whatever the records say about a plan or request that this same transaction inserts is part of its row; the rest
becomes changes of stored rows. All inserts run before all changes, and nothing runs before all rows are checked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from service.journal.records import (
    LaneOutcome,
    OutputPublished,
    PackedPlan,
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
from service.recorder.changes import CHANGES
from service.recorder.checks import ColumnChecks
from service.recorder.decision_log import LogChunks
from service.recorder.packed_rows import KNOWN_VALUES, PackedRows, TableColumns, rows_of
from service.recorder.plan_ends import PlanEnds, deliveries, lane_outcomes, published_lanes
from service.recorder.rollups import MinuteSums
from service.recorder.rows import SHAPE_AND_REASON, Row, RowBuilder
from service.recorder.statements import INSERTS, StoreWriter, running_plans, stored_lanes
from service.store.tables import plan_minutes

_MINUTES = "plan_minutes"
_NEVER_NS = 1 << 64


class StagingChecks:
    """The checks of everything that a Staging writes, made once for a writer."""

    def __init__(self, null: object) -> None:
        tables = {table.name: table.columns.values() for table in (*INSERTS, plan_minutes)}
        self.rows = {name: ColumnChecks(columns, null) for name, columns in tables.items()}
        self.changes = {name: ColumnChecks(change.columns, null) for name, change in CHANGES.items()}


class Staging:
    """Rows, changes and sums of some records of one run, in the journal's order. `ended`: the run's end among them."""

    def __init__(self, build: RowBuilder, records: Sequence[Record]) -> None:
        self._build = build
        of: dict[type, list[Any]] = defaultdict(list)
        for record in records:
            of[type(record)].append(record)
        self._of = of
        self._log = LogChunks(build.run_id)
        for record in records if of[SchedulerCalls] or of[SchedulerCheckpoint] else ():
            if isinstance(record, SchedulerCalls):
                self._log.add_calls(record)
            elif isinstance(record, SchedulerCheckpoint):
                self._log.add_checkpoint(record)
        self.ended: RunEnded | None = of[RunEnded][-1] if of[RunEnded] else None
        self._done: dict[int, PlanCompleted] = {record.fence: record for record in of[PlanCompleted]}
        self._published: dict[int, list[OutputPublished]] = defaultdict(list)
        for record in of[OutputPublished]:
            self._published[record.fence].append(record)
        self._rows: dict[str, list[Row]] = {table.name: [] for table in INSERTS}
        self._packed: list[dict[str, TableColumns]] = []
        self._changes: dict[str, list[Row]] = {name: [] for name in CHANGES}
        self._minutes = MinuteSums(build)
        self._progress: dict[str, int] = defaultdict(int)  # output tokens by request
        self._first_output_ns: dict[str, int] = {}

    def write(self, connection: sa.Connection, writer: StoreWriter, checks: StagingChecks) -> None:
        """Make and check the rows, and store them. Raises what blames_record takes for a record's fault, and others."""
        self._rows["engine_runs"] = [self._build.run_row(record) for record in self._of[RunStarted]]
        self._rows["policy_applications"] = [self._build.application_row(record) for record in self._of[PolicyApplied]]
        for record in self._of[RunEnded]:
            self._build.at(record.ended_ns)  # refused here, where that costs only itself
        self._rows["decision_log"] = self._log.rows()
        self._new_plans()
        self._packed_plans()
        self._late_ends(connection)
        self._requests()
        minutes = self._minutes.rows()
        for table, rows in self._rows.items():
            if rows:
                checks.rows[table](rows)
        for name, rows in self._changes.items():
            if rows:
                checks.changes[name](rows)
        if minutes:
            checks.rows[_MINUTES](minutes)
        self._take_packed(checks)
        for table, rows in self._rows.items():
            if rows:
                writer.insert(connection, table, rows)
        for name, rows in self._changes.items():
            if rows:
                writer.change(connection, name, rows)
        if minutes:
            writer.add_minutes(connection, minutes)

    def _new_plans(self) -> None:
        """Plans that this transaction inserts, with what is known of their ends."""
        build = self._build
        plans, lanes, others = self._rows["plans"], self._rows["plan_lanes"], self._rows["plan_alternatives"]
        plan: PlanCommitted
        for plan in self._of[PlanCommitted]:
            fence, count = plan.fence, len(plan.lanes)
            done = self._done.get(fence)
            publications = self._published.get(fence, ())
            published = published_lanes(publications, count)
            outcomes = lane_outcomes(done, count)
            end = None if done is None else build.plan_end(done)
            row = build.plan_row(plan, end, deliveries(publications))
            plans.append(row)
            lanes.extend(build.lane_rows(plan, outcomes, published))
            others.extend([build.alternative_row(fence, other) for other in plan.alternatives])
            if done is None and not publications:
                continue
            request_ids = [lane.request_id for lane in plan.lanes]
            if done is not None and end is not None:
                self._minutes.add(row[SHAPE_AND_REASON], plan.selected_cost_ns / 1e6, end)
                self._add_tokens(request_ids, _committed(outcomes))
            self._add_first_outputs(request_ids, published)

    def _packed_plans(self) -> None:
        """As _new_plans, of plans that are still packed; their rows wait in columns."""
        for _, group in groupby(self._of[PackedPlan], lambda plan: plan.layout):
            plans = list(group)
            packed = PackedRows(self._build, plans)
            done = [self._done.get(plan.fence) for plan in plans]
            publications = [self._published.get(plan.fence, ()) for plan in plans]
            ends = PlanEnds(self._build, packed.lanes, done, publications)
            self._minutes.add_plans(packed.groups(), ends.columns)
            request_ids = packed.request_ids()
            self._add_tokens(request_ids, ends.committed)
            self._add_first_outputs(request_ids, ends.published_ns)
            self._packed.append(packed.tables(ends))

    def _take_packed(self, checks: StagingChecks) -> None:
        """Check the columns of packed plans, and make rows of them."""
        run_id = (self._build.run_id,)
        for tables in self._packed:
            for table, columns in tables.items():
                values: dict[str, Any] = {name: v for name, v in columns.items() if name not in KNOWN_VALUES}
                checks.rows[table].columns({"run_id": run_id, **values})
                self._rows[table] += rows_of(columns)

    def _late_ends(self, connection: sa.Connection) -> None:
        """Ends and publications of plans that an earlier transaction inserted."""
        new = {plan.fence for kind in (PlanCommitted, PackedPlan) for plan in self._of[kind]}
        late = sorted((self._done.keys() | self._published.keys()) - new)
        if not late:
            return
        build, run_id = self._build, self._build.run_id
        running: dict[int, Row] = {}
        for fence, *group_and_cost in running_plans(connection, run_id, [f for f in late if f in self._done]):
            running[fence] = tuple(group_and_cost)
        stored: dict[int, list[str]] = defaultdict(list)
        for fence, _lane, request_id in stored_lanes(connection, run_id, late):
            stored[fence].append(request_id)
        for fence in late:
            request_ids, done, publications = stored[fence], self._done.get(fence), self._published.get(fence, ())
            outcomes = lane_outcomes(done, len(request_ids))
            if done is not None:
                end = build.plan_end(done)
                self._change_plan(fence, end, outcomes)
                if fence in running:  # otherwise its end was stored before, and counted then
                    *group, cost_ms = running[fence]
                    self._minutes.add(tuple(group), cost_ms, end)
                    self._add_tokens(request_ids, _committed(outcomes))
            if publications:
                published = published_lanes(publications, len(request_ids))
                self._change_deliveries(fence, deliveries(publications), published)
                self._add_first_outputs(request_ids, published)

    def _change_plan(self, fence: int, end: Row, outcomes: Sequence[LaneOutcome | None]) -> None:
        run_id = self._build.run_id
        self._changes["completed"].append((run_id, fence, *end))
        self._changes["lane_outcomes"].extend(
            (run_id, fence, number, lane.offered_tokens, lane.committed_tokens, lane.accepted_tokens)
            for number, lane in enumerate(outcomes)
            if lane is not None
        )

    def _change_deliveries(self, fence: int, deliveries: int, published: Sequence[int | None]) -> None:
        run_id = self._build.run_id
        self._changes["deliveries"].append((run_id, fence, deliveries))
        self._changes["lane_deliveries"].extend(
            (run_id, fence, number, 1, ns) for number, ns in enumerate(published) if ns is not None
        )

    def _add_tokens(self, request_ids: Sequence[str], committed_tokens: Iterable[int]) -> None:
        """Output tokens of a plan's lanes, to those of their requests."""
        progress = self._progress
        for request_id, tokens in zip(request_ids, committed_tokens, strict=True):
            if tokens:
                progress[request_id] += tokens

    def _add_first_outputs(self, request_ids: Sequence[str], published: Sequence[int | None]) -> None:
        """The earliest output of each request, as publications and finishes tell it."""
        first = self._first_output_ns
        for request_id, ns in zip(request_ids, published, strict=True):
            if ns is not None and ns < first.get(request_id, _NEVER_NS):
                first[request_id] = ns

    def _requests(self) -> None:
        """Requests that this transaction inserts, and changes of others."""
        build, run_id, changes = self._build, self._build.run_id, self._changes
        admitted: dict[str, RequestAdmitted] = {record.request_id: record for record in self._of[RequestAdmitted]}
        finished: dict[str, RequestFinished] = {record.request_id: record for record in self._of[RequestFinished]}
        for name, end in finished.items():
            self._add_first_outputs([name], [end.first_output_ns])
        first = {name: build.at(ns) for name, ns in self._first_output_ns.items()}
        new: set[str] = set()
        record: RequestArrived
        for record in self._of[RequestArrived]:
            name = record.request_id
            new.add(name)
            so_far = self._progress.get(name, 0)
            row = build.request_row(record, admitted.get(name), first.get(name), so_far, finished.get(name))
            self._rows["requests"].append(row)
        for name, admission in admitted.items():
            if name not in new:
                changes["admitted"].append((run_id, name, build.at(admission.admitted_ns), admission.cached_tokens))
        changes["first_outputs"] = [(run_id, name, at) for name, at in first.items() if name not in new]
        changes["progress"] = [(run_id, name, n) for name, n in self._progress.items() if name not in new and n]
        changes["finished"] = [
            (run_id, name, *build.request_end(end)) for name, end in finished.items() if name not in new
        ]


def _committed(outcomes: Iterable[LaneOutcome | None]) -> list[int]:
    return [0 if outcome is None else outcome.committed_tokens for outcome in outcomes]
