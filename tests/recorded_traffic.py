"""A run of the simulated machine written into a trace store as a recorder would: a recording whose truth is known."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
import zlib
from typing import Any

import msgspec
import sqlalchemy as sa
from factories import policy_row

from scheduler.catalog import Catalog
from scheduler.policy import PolicyConfig
from scheduler.records import CompletionRecord, ExecutionTiming, RequestHandle, RequestSpec
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import GraphKind, GraphShape
from scheduler.simulation.durations import HostCosts
from scheduler.simulation.machine import MachineSettings, simulate
from scheduler.simulation.results import SimulationResult
from scheduler.simulation.workload import Arrival, Workload
from service.journal.calls import ADMIT
from service.store import tables
from service.store.decision_log import pack_calls
from service.store.engines import write_transaction

RUN = "recorded-run"
STARTED_AT = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
FIRST_NS = 1_000_000_000
STATES = (GraphKind.INIT, GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT)
SHAPES = (
    *(GraphShape(kind, batch) for kind in STATES for batch in (1, 4)),
    *(GraphShape(GraphKind.PREFILL, 1, prefill_capacity=capacity) for capacity in (64, 256)),
    *(GraphShape(GraphKind.DECODE, batch) for batch in (1, 2, 4, 8)),
)
_EMPTY: dict[type, Any] = {sa.Text: "", sa.Boolean: False, sa.JSON: {}}


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What was written. `result`: what really happened; `workload`: who came."""

    result: SimulationResult
    workload: Workload
    until: dt.datetime
    specs: int


class _Noisy:
    """A DurationSource: ms by kind, times a luck of its own, growing with context; notes what it gave."""

    needs_context = True

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.given: list[tuple[int, int]] = []

    def duration_ns(self, plan: Any, context_tokens: float, now_ns: int) -> tuple[int, int]:
        shape = plan.shape
        base = {GraphKind.PREFILL: 4.0 + shape.prefill_capacity / 16, GraphKind.DECODE: 5.0 + shape.batch_capacity / 2}
        ms = base.get(shape.kind, 0.3) * self._random.uniform(0.8, 1.3) * (1 + context_tokens / 2000)
        self.given.append((now_ns, round(ms * 1e6)))
        return self.given[-1][1], self.given[-1][1]


class _Noted(RequestScheduler):
    """Notes what a recorder writes down."""

    def __init__(self, policy: PolicyConfig, slots: int) -> None:
        super().__init__(Catalog(SHAPES), policy, slots)
        self.plans: list[dict[str, Any]] = []
        self.lanes: dict[int, list[dict[str, Any]]] = {}
        self.specs: dict[str, tuple[RequestSpec, int]] = {}
        self.published: dict[tuple[int, RequestHandle], int] = {}

    def admit(self, spec: RequestSpec) -> RequestHandle:
        handle = super().admit(spec)
        self.specs[spec.request_id] = (spec, self.now_ns)
        return handle

    def commit(self, plan: Any, fence: int) -> None:
        self.plans.append({"fence": fence, "plan": plan, "at": self.now_ns})
        self.lanes[fence] = [{"lane": lane} for lane in plan.lanes]
        super().commit(plan, fence)

    def complete(self, fence: int, records: list[CompletionRecord], timing: ExecutionTiming) -> Any:
        tokens = super().complete(fence, records, timing)
        committed: dict[RequestHandle, int] = {}
        for token in tokens:
            committed[token.handle] = committed.get(token.handle, 0) + 1
        for lane, record in zip(self.lanes[fence], records, strict=True):
            lane["record"], lane["committed"] = record, committed.get(record.handle, 0)
        return tokens

    def published_output(self, handle: RequestHandle, fence: int) -> None:
        self.published[fence, handle] = self.now_ns
        super().published_output(handle, fence)


def workload(seconds: float, rate: float, seed: int) -> Workload:
    """Poisson arrivals with prompts of 8 to 400 tokens and answers of 2 to 60."""
    luck, at_s, arrivals = random.Random(seed), 0.0, []
    while (at_s := at_s + luck.expovariate(rate)) < seconds:
        time_ns = FIRST_NS + round(at_s * 1e9)
        arrivals.append(Arrival(len(arrivals), time_ns, luck.randint(8, 400), luck.randint(2, 60)))
    return Workload(tuple(arrivals), {})


def record(
    engine: sa.Engine,
    *,
    seconds: float = 20.0,
    rate: float = 3.0,
    seed: int = 1,
    policy: PolicyConfig | None = None,
    log: bool = True,
) -> Recorded:
    """Runs and writes it. `log`: with the scheduler's state at the start and how requests were let in."""
    config, came = policy or PolicyConfig.balanced(), workload(seconds, rate, seed)
    scheduler, durations = _Noted(config, 16), _Noisy(seed)
    checkpoint = scheduler.checkpoint()
    settings = MachineSettings(
        request_slots=16,
        context_capacity=2048,
        host=HostCosts(step_ms=1.0),
        known_output_lengths=True,
        snapshot_rows=64,
    )
    result = simulate(scheduler, came, durations, settings)
    plans, lanes = _plan_rows(scheduler, durations)
    with write_transaction(engine) as connection:
        connection.execute(sa.insert(tables.engine_runs), [_run_row()])
        connection.execute(sa.insert(tables.policy_versions), [policy_row(1, config, STARTED_AT)])
        connection.execute(sa.insert(tables.requests), _request_rows(scheduler, came, result))
        if engine.dialect.name == "postgresql":
            for row in (*plans, *lanes):
                row["recorded_on"] = STARTED_AT.date()
        connection.execute(sa.insert(_with_day(engine, tables.plans)), plans)
        connection.execute(sa.insert(_with_day(engine, tables.plan_lanes)), lanes)
        if log:
            connection.execute(sa.insert(tables.decision_log), _log_rows(scheduler, checkpoint, len(plans)))
    return Recorded(result, came, _at(result.end_ns), len(scheduler.specs))


def _with_day(engine: sa.Engine, table: sa.Table) -> Any:
    if engine.dialect.name != "postgresql":
        return table
    return sa.table(table.name, *(sa.column(c.name, c.type) for c in table.columns), sa.column("recorded_on", sa.Date))


def _at(ns: int) -> dt.datetime:
    return STARTED_AT + dt.timedelta(microseconds=ns // 1000)


def _row(table: sa.Table, **values: Any) -> dict[str, Any]:
    """A row in which whatever is not given is empty: NULL where that may be."""
    row: dict[str, Any] = {}
    for column in table.columns:
        empty = next((value for kind, value in _EMPTY.items() if isinstance(column.type, kind)), 0)
        row[column.name] = None if column.nullable else empty
    return {**row, **values}


def _run_row() -> dict[str, Any]:
    wall_ns = int(STARTED_AT.timestamp()) * 1_000_000_000
    return _row(
        tables.engine_runs, run_id=RUN, started_at=STARTED_AT, model="a-model", device="simulated",
        settings={"request_slots": 16}, started_wall_ns=wall_ns, started_monotonic_ns=0,
    )  # fmt: skip


def _plan_rows(scheduler: _Noted, durations: _Noisy) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    plans, lanes = [], []
    for noted, (started_ns, took_ns) in zip(scheduler.plans, durations.given, strict=True):
        fence, plan, shape = noted["fence"], noted["plan"], noted["plan"].shape
        of_plan = scheduler.lanes[fence]
        plans.append(
            _row(
                tables.plans, run_id=RUN, fence=fence, committed_at=_at(noted["at"]), committed_ns=noted["at"],
                kind=shape.kind.value, batch_capacity=shape.batch_capacity, draft_depth=0, target_width=1,
                target_rows=shape.target_rows, prefill_capacity=shape.prefill_capacity, allocation="none",
                prompt_rows=shape.prompt_rows,
                reason=plan.reason.value, score_kind="rate", cost_state="fresh", active_rows=len(of_plan),
                queue_depth=plan.queue_depth, policy_version=1, started_ns=started_ns, outcome="completed",
                completed_ns=started_ns + took_ns, completed_at=_at(started_ns + took_ns), device_ms=took_ns / 1e6,
                wall_ms=took_ns / 1e6, output_tokens=sum(lane["committed"] for lane in of_plan),
            )
        )  # fmt: skip
        for number, lane in enumerate(of_plan):
            handle = lane["lane"].handle
            lanes.append(
                _row(
                    tables.plan_lanes, run_id=RUN, fence=fence, lane=number, request_id=lane["lane"].request_id,
                    generation=handle.generation, role=lane["lane"].role.value,
                    prompt_tokens=lane["record"].consumed_prompt_tokens, committed_tokens=lane["committed"],
                    published_ns=scheduler.published.get((fence, handle)),
                    delivered=(fence, handle) in scheduler.published,
                )
            )  # fmt: skip
    return plans, lanes


def _request_rows(scheduler: _Noted, came: Workload, result: SimulationResult) -> list[dict[str, Any]]:
    ended = {outcome.index: outcome for outcome in result.outcomes}
    rows = []
    for arrival in came.arrivals:
        spec, admitted_ns = scheduler.specs[str(arrival.index)]
        outcome = ended[arrival.index]
        rows.append(
            _row(
                tables.requests, run_id=RUN, request_id=str(arrival.index), model="a-model",
                arrived_at=_at(arrival.time_ns or 0), admitted_at=_at(admitted_ns),
                first_output_at=_at(outcome.first_ns), finished_at=_at(outcome.finished_ns),
                prompt_tokens=arrival.prompt_tokens, output_tokens=outcome.output_tokens,
                max_tokens=spec.max_output_tokens, finish_reason="stop",
                preemptions=0, tokenize_ms=0.0,
            )
        )  # fmt: skip
    return rows


def _log_rows(scheduler: _Noted, checkpoint: bytes, last: int) -> list[dict[str, Any]]:
    admits = msgspec.msgpack.encode([[ADMIT, spec] for spec, _ in scheduler.specs.values()])
    first = _row(
        tables.decision_log, run_id=RUN, calls=1, first_fence=1, is_checkpoint=True, blob=zlib.compress(checkpoint)
    )
    calls = _row(
        tables.decision_log, run_id=RUN, first_call=1, calls=len(scheduler.specs), first_fence=1, last_fence=last,
        blob=pack_calls([admits]),
    )  # fmt: skip
    return [first, calls]
