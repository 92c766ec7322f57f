"""A store small enough to work every answer of docs/sql-cookbook.md out by hand: two runs, both of one day."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
from factories import policy_row
from plain_minutes import write_minutes

from scheduler.policy import PolicyConfig
from service.store.engines import write_transaction
from service.store.tables import (
    engine_runs,
    plan_lanes,
    plans,
    policy_applications,
    policy_attempts,
    policy_versions,
    requests,
    trace_gaps,
)

# kind, batch_capacity, draft_depth, target_width, target_rows, prefill_capacity
PREFILL = ("prefill", 1, 0, 1, 0, 256)
DECODE = ("decode", 4, 0, 1, 4, 0)
ROUND = ("speculative", 2, 3, 4, 8, 0)
SHAPE_NAMES = ("kind", "batch_capacity", "draft_depth", "target_width", "target_rows", "prefill_capacity")


def at(day: dt.date, clock: str) -> dt.datetime:
    """The time of `day` that `clock` shows, as in 10:20:01.5."""
    return dt.datetime.combine(day, dt.time.fromisoformat(clock), dt.UTC)


def filled_row(table: sa.Table, values: dict[str, object]) -> dict[str, object]:
    """`values`, with zeros and empty texts for the columns that must have something."""
    row: dict[str, object] = dict.fromkeys(c.name for c in table.columns if c.name != "id")
    for column in table.columns:
        if not column.nullable and column.name != "id":
            row[column.name] = "" if isinstance(column.type, sa.Text) else column.type.python_type()
    if "prompt_rows" in row:
        row["prompt_rows"] = 1
    return row | values


class _Run:
    """Plans of one run; `second` counts from the start of the run, at which the monotonic clock shows 0."""

    def __init__(self, run_id: str, started_at: dt.datetime) -> None:
        self.run_id, self.started_at = run_id, started_at
        self.plans: list[dict[str, object]] = []

    def plan(
        self, second: float, shape: tuple[object, ...], reason: str, cost_ms: float, device_ms: float | None, **more
    ):
        """It starts 1 ms after its commit; its wall time is 0.5 ms more than its device time."""
        committed_ns = round(second * 1e6) * 1000
        values = {
            "run_id": self.run_id,
            "fence": len(self.plans) + 1,
            "committed_at": self.started_at + dt.timedelta(seconds=second),
            "committed_ns": committed_ns,
            **dict(zip(SHAPE_NAMES, shape, strict=True)),
            "speculation_enabled": shape is ROUND,
            "allocation": "none",
            "reason": reason,
            "selected_cost_ms": cost_ms,
            "cost_state": "fresh",
            "policy_version": 1,
            "outcome": "lost" if device_ms is None else "completed",
        }
        if device_ms is not None:
            started_ns, wall_ms = committed_ns + 1_000_000, device_ms + 0.5
            completed_ns = started_ns + round(wall_ms * 1e6)
            values |= {"started_ns": started_ns, "completed_ns": completed_ns, "device_ms": device_ms}
            values |= {"wall_ms": wall_ms, "completed_at": self.started_at + dt.timedelta(seconds=completed_ns / 1e9)}
        self.plans.append(filled_row(plans, values | more))


def _plan_rows(day: dt.date) -> list[dict[str, object]]:
    first, second = _Run("r1", at(day, "08:00")), _Run("r2", at(day, "10:00"))
    first.plan(60, PREFILL, "ordinary", 10, 10, output_tokens=1)
    first.plan(61, DECODE, "ordinary", 4, 5, margin=0.5, output_tokens=2)
    first.plan(62, DECODE, "ordinary", 4, None)
    second.plan(1200, PREFILL, "discovery", 0, 20, cost_state="unknown", output_tokens=1)
    second.plan(1200.1, PREFILL, "ordinary", 20, 22, margin=0.2, output_tokens=1, discovery_ms=20.5)
    second.plan(1200.2, DECODE, "ordinary", 5, 4, margin=0.005, candidates=7, output_tokens=2, discovery_ms=20.5)
    credit = {"timing_credit_ms": 5.0, "acceptance_credit_ms": 4.0, "discovery_ms": 20.5}
    second.plan(1201, DECODE, "timing_refresh", 4, 6, margin=-0.3, cost_state="stale", output_tokens=2, **credit)
    later = {"policy_version": 2, "timing_spent_ms": 6.5, "discovery_ms": 20.5}
    drafted = {"offered_tokens": 6, "draft_tokens": 6, "accepted_tokens": 3, "output_tokens": 5, "logical_rows": 8}
    second.plan(5400, ROUND, "acceptance_learning", 8, 10, acceptance_credit_ms=5.0, **later, **drafted)
    later["acceptance_spent_ms"] = 10.5
    drafted |= {"offered_tokens": 5, "accepted_tokens": 4, "output_tokens": 6, "logical_rows": 7}
    second.plan(5401, ROUND, "ordinary", 8, 8, margin=0.008, candidates=9, **later, **drafted)
    second.plan(5402, DECODE, "ordinary", 5, 5, margin=0.02, output_tokens=1, **later)
    second.plan(5403, DECODE, "ordinary", 5, None, **later | {"outcome": "in_flight", "timing_credit_ms": 0.25})
    return first.plans + second.plans


def _lane(fence: int, lane: int, request_id: str, role: str, expected: float, committed: int, **more):
    values = {"run_id": "r2", "fence": fence, "lane": lane, "request_id": request_id, "role": role}
    values |= {"query_length": 1, "expected_tokens": expected, "committed_tokens": committed}
    return filled_row(plan_lanes, values | more)


def _lane_rows() -> list[dict[str, object]]:
    return [
        _lane(1, 0, "q2", "prefill", 1, 1, query_length=44),
        _lane(2, 0, "q1", "prefill", 1, 1, query_length=100),
        _lane(3, 0, "q1", "decode", 1, 1),
        _lane(3, 1, "q2", "decode", 1, 1),
        _lane(4, 0, "q1", "decode", 1, 1),
        _lane(4, 1, "q2", "decode", 1, 1),
        _lane(5, 0, "q5", "decode", 2.5, 3, query_length=4, offered_tokens=3, accepted_tokens=2),
        _lane(5, 1, "q4", "decode", 2.5, 2, query_length=4, offered_tokens=3, accepted_tokens=1),
        _lane(6, 0, "q5", "decode", 2.5, 4, query_length=4, offered_tokens=3, accepted_tokens=3),
        _lane(6, 1, "q4", "decode", 2, 2, query_length=3, offered_tokens=2, accepted_tokens=1),
        _lane(7, 0, "q5", "decode", 1, 1),
    ]


def _request(day: dt.date, run_id: str, name: str, arrived: str, finished: str | None, reason: str | None, **more):
    times = {"arrived_at": at(day, arrived), "finished_at": finished and at(day, finished)}
    return filled_row(requests, {"run_id": run_id, "request_id": name, "finish_reason": reason, **times, **more})


def _request_rows(day: dt.date) -> list[dict[str, object]]:
    def phases(*ms: float | None) -> dict[str, float | None]:
        names = ("queue_ms", "tokenize_ms", "prefill_ms", "decode_ms", "publish_ms")
        return dict(zip(names, ms, strict=True))

    nothing = phases(None, None, None, None, None)
    return [
        _request(day, "r1", "q0", "08:00:50", "08:30", "error", error="the engine ended", prompt_tokens=50, **nothing),
        _request(
            day, "r2", "q1", "10:20", "10:20:02", "stop", prompt_tokens=100, output_tokens=3, **phases(5, 1, 42, 100, 2)
        ),
        _request(
            day, "r2", "q2", "10:20:00.010", "10:20:02", "stop", prompt_tokens=300, cached_tokens=256, output_tokens=3,
            preemptions=2, **phases(55, 1, 20, 60, 1),
        ),
        _request(
            day, "r2", "q3", "11:29", "11:29:01", "error", error="no KV pages", prompt_tokens=100, preemptions=1,
            **phases(190, 1, None, None, None),
        ),
        _request(
            day, "r2", "q4", "11:29:30", "11:30:01.5", "abort", prompt_tokens=1200, cached_tokens=900, output_tokens=4,
            **phases(10, 2, 30, 5, 0),
        ),
        _request(day, "r2", "q5", "11:29:59", None, None, prompt_tokens=50, output_tokens=8, **nothing),
    ]  # fmt: skip


def _run_row(run_id: str, started_at: dt.datetime, draft_tokens: int, **more):
    settings = {"dtype": "float32", "draft_tokens": draft_tokens}
    values = {"run_id": run_id, "started_at": started_at, "model": "m", "device": "cpu", "settings": settings}
    return filled_row(engine_runs, values | {"host": "h", "catalog_digest": "0", **more})


def _policy_rows(day: dt.date) -> dict[sa.Table, list[dict[str, object]]]:
    balanced = PolicyConfig.balanced()
    morning, half, quarter = at(day, "08:00"), at(day, "10:30"), at(day, "10:45")
    return {
        policy_versions: [
            policy_row(1, balanced, morning, preset="balanced"),
            policy_row(2, balanced, half, actor="anna", note="shorter gaps"),
            policy_row(3, balanced, quarter, actor="bob", note="bolder", state="refused", applied_at=None),
        ],
        policy_applications: [
            {"version": 1, "run_id": "r1", "fence": 0, "applied_at": morning},
            {"version": 1, "run_id": "r2", "fence": 0, "applied_at": at(day, "10:00")},
            {"version": 2, "run_id": "r2", "fence": 4, "applied_at": half},
        ],
        policy_attempts: [
            {"at": half, "actor": "anna", "outcome": "applied", "reason": "", "request": {}},
            {"at": at(day, "10:31"), "actor": "bob", "outcome": "stale", "reason": "version 2 is newer", "request": {}},
            {"at": quarter, "actor": "bob", "outcome": "refused", "reason": "the engine ended", "request": {}},
        ],
    }


def fill_cookbook_store(engine: sa.Engine, day: dt.date) -> None:
    """Writes the data set into an empty store, all of it on `day`."""
    one, two = at(day, "08:00"), at(day, "10:00")
    rows = {
        engine_runs: [
            _run_row("r1", one, 0, ended_at=at(day, "08:30"), end_reason="failed: killed", version="0.1.0"),
            _run_row("r2", two, 3, version="0.2.0"),
        ],
        requests: _request_rows(day),
        plans: _plan_rows(day),
        plan_lanes: _lane_rows(),
        trace_gaps: [
            {"run_id": "r1", "from_fence": 4, "to_fence": 6, "noticed_at": two, "reason": "missing tail"},
            {"run_id": "r2", "from_fence": None, "to_fence": None, "noticed_at": at(day, "11:00"), "reason": "budget"},
        ],
        **_policy_rows(day),
    }
    with write_transaction(engine) as connection:
        for table, values in rows.items():
            connection.execute(table.insert(), values)
    write_minutes(engine)
