"""Believable rows for tests: `fill_store(engine)` writes what two engine runs would have left in the trace store."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random

import sqlalchemy as sa
from factory_runs import SimulatedRun

from scheduler.policy import PolicyConfig
from service.store.engines import write_transaction
from service.store.tables import (
    engine_runs,
    journal_offsets,
    plan_alternatives,
    plan_lanes,
    plans,
    policy_applications,
    policy_versions,
    requests,
    trace_gaps,
)

STARTED_AT = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)


@dataclasses.dataclass
class FilledStore:
    """What was written. `run_ids` oldest first; `plan_keys` are (run_id, fence), oldest first."""

    run_ids: list[str]
    plan_keys: list[tuple[str, int]]
    request_keys: list[tuple[str, str]]
    policy_versions: list[int]
    in_flight: list[tuple[str, int]]
    lost: list[tuple[str, int]]
    first_at: dt.datetime
    last_at: dt.datetime


def policy_row(version: int, config: PolicyConfig, at: dt.datetime, **values: object) -> dict[str, object]:
    """A `policy_versions` row, applied unless `values` say otherwise."""
    return {
        "version": version,
        "created_at": at,
        "applied_at": at,
        "state": "applied",
        "actor": "default",
        "note": "",
        "parent_version": version - 1 or None,
        "preset": None,
        **config.as_dict(),
        **values,
    }


def fill_store(
    engine: sa.Engine, *, plans: int = 200, requests: int = 12, seed: int = 1, started_at: dt.datetime = STARTED_AT
) -> FilledStore:
    """Writes two runs with `plans` plans and `requests` requests in all, deterministic in `seed`.

    The first run (a fifth of the plans) was killed: its last plan is lost. The second still runs: its last plan is
    in flight. Policy version 2 by "anna" takes effect half-way through the second run. At least 4 plans and 2
    requests; the store must hold no policy versions yet.
    """
    assert plans >= 4, "fill_store writes at least 4 plans"
    assert requests >= 2, "fill_store writes at least 2 requests"
    random_ = random.Random(seed)
    configs = {1: PolicyConfig.balanced(), 2: PolicyConfig.balanced().merged({"decode_age_price": 0.4})}
    early, early_requests = max(2, plans // 5), max(1, requests // 5)
    first = SimulatedRun(f"run-{random_.getrandbits(48):012x}-0001", random_, started_at, early_requests)
    for fence in range(1, early + 1):
        first.step(fence, 1, configs[1], 1 + fence * early_requests // early)
    later = first.wall(first.now_ns) + dt.timedelta(seconds=2)
    second = SimulatedRun(f"run-{random_.getrandbits(48):012x}-0002", random_, later, requests - early_requests)
    rest, changed_at, switch = plans - early, later, (plans - early) // 2
    for fence in range(1, rest + 1):
        if fence == switch + 1:
            changed_at = second.wall(second.now_ns)
        version = 1 if fence <= switch else 2
        second.step(fence, version, configs[version], 1 + fence * (requests - early_requests) * 5 // (rest * 4))
    lost, in_flight = first.cut_off("lost"), second.cut_off("in_flight")
    _write(engine, first, second, configs, changed_at, switch)
    keys = [(run.run_id, int(p["fence"])) for run in (first, second) for p in run.plan_rows]  # type: ignore[call-overload]
    return FilledStore(
        run_ids=[first.run_id, second.run_id],
        plan_keys=keys,
        request_keys=[(run.run_id, r.request_id) for run in (first, second) for r in run.requests],
        policy_versions=[1, 2],
        in_flight=[(second.run_id, in_flight)],
        lost=[(first.run_id, lost)],
        first_at=first.plan_rows[0]["committed_at"],  # type: ignore[arg-type]
        last_at=second.plan_rows[-1]["committed_at"],  # type: ignore[arg-type]
    )


def _run_row(run: SimulatedRun, ended_at: dt.datetime | None) -> dict[str, object]:
    return {
        "run_id": run.run_id,
        "started_at": run.started_at,
        "ended_at": ended_at,
        "end_reason": "failed: killed" if ended_at else None,
        "host": "test-host",
        "version": "0.1.0",
        "model": "smollm2-135m-instruct",
        "device": "cpu",
        "catalog_digest": "0" * 16,
        "settings": {"port": 8000, "dtype": "float32"},
        "started_wall_ns": int(run.started_at.timestamp() * 1e6) * 1000,
        "started_monotonic_ns": run.started_ns,
    }


def _write(
    engine: sa.Engine,
    first: SimulatedRun,
    second: SimulatedRun,
    configs: dict[int, PolicyConfig],
    changed_at: dt.datetime,
    switch: int,
) -> None:
    killed_at = first.wall(first.now_ns)
    with write_transaction(engine) as connection:
        connection.execute(
            policy_versions.insert(),
            [
                policy_row(1, configs[1], first.started_at, preset="balanced"),
                policy_row(2, configs[2], changed_at, actor="anna", note="shorter gaps"),
            ],
        )
        connection.execute(engine_runs.insert(), [_run_row(first, killed_at), _run_row(second, None)])
        connection.execute(
            policy_applications.insert(),
            [
                {"version": 1, "run_id": first.run_id, "fence": 0, "applied_at": first.started_at},
                {"version": 1, "run_id": second.run_id, "fence": 0, "applied_at": second.started_at},
                {"version": 2, "run_id": second.run_id, "fence": switch, "applied_at": changed_at},
            ],
        )
        for run, ended in ((first, True), (second, False)):
            connection.execute(requests.insert(), run.request_rows(ended))
            connection.execute(plans.insert(), run.plan_rows)
            connection.execute(plan_lanes.insert(), run.lane_rows)
            if run.alternative_rows:
                connection.execute(plan_alternatives.insert(), run.alternative_rows)
        connection.execute(
            trace_gaps.insert(),
            {
                "run_id": first.run_id,
                "from_fence": len(first.plan_rows) + 1,
                "to_fence": len(first.plan_rows) + 1,
                "noticed_at": second.started_at,
                "reason": "missing tail",
            },
        )
        for sink in ("sql", "spans"):
            values = {
                "journal_id": "journal-1",
                "sink": sink,
                "segment": 1,
                "offset": 4096,
                "run_id": second.run_id,
                "updated_at": second.wall(second.now_ns),
            }
            values.update({c.name: 0 for c in journal_offsets.columns if not c.nullable and c.name not in values})
            connection.execute(journal_offsets.insert(), values)
