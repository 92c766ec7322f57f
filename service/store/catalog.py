"""What a run knew of its graphs' durations, for `/api/catalog` and the dashboard's Costs page alike.

The scheduler's own estimates are in its checkpoints, which the recorder stores every ten seconds: every prepared graph
is there, measured or not. Where no checkpoint can be read (none yet, pruned, of another version) the roll-up stands in:
then only graphs that ran in the run's last day are known, and their estimates are means of their last minute.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import sqlalchemy as sa

from scheduler.catalog import DEFAULT_TTL_NS
from scheduler.errors import InvalidCheckpoint
from scheduler.plans import CostState
from scheduler.replay import durations_in
from scheduler.shapes import Allocation, GraphKind, GraphShape
from service.store import filters
from service.store.decision_log import DamagedBlob, unpack_state
from service.store.engines import read_transaction
from service.store.hints import among_times
from service.store.queries import KINDS, Bind, Row, Time
from service.store.tables import SHAPE_COLUMNS, decision_log, engine_runs, plan_minutes, plans, policy_versions

MINUTE = dt.timedelta(minutes=1)
REACH = dt.timedelta(days=1)
"""How far back the roll-up is searched for graphs when there is no checkpoint."""
CHECKPOINT, ROLL_UP = "checkpoint", "plan_minutes"


@dataclasses.dataclass(frozen=True, slots=True)
class GraphCatalog:
    """The graphs of one run as of `as_of`; `source` is CHECKPOINT or ROLL_UP, "" where nothing is known.

    Each row holds `run_id`, the shape columns, `shape` (its label), `estimate_ms`, `samples` (behind the estimate; None
    where unknown), `cost_state`, `completed_at` (when the newest sample was taken), `observation_age_ms`, and of the
    minutes asked about `plans`, `device_ms_sum`, `device_ms_max`, `device_ms_mean` and `cost_ratio` (observed over
    predicted time of all but discovery).
    """

    run_id: str | None
    as_of: dt.datetime | None
    source: str
    rows: list[Row]


def graph_label(row: Row) -> str:
    """The label of a row's shape, such as `prefill:B1:C256`; the same text as in the views."""
    text = f"{row['kind']}:B{row['batch_capacity']}"
    if row["kind"] in ("speculative", "mixed"):
        text += f":D{row['draft_depth']}:W{row['target_width']}:P{row['target_rows']}"
    text += f":C{row['prefill_capacity']}" if row["prefill_capacity"] else ""
    return f"{text}:R{row['prompt_rows']}" if row["prompt_rows"] > 1 else text


def read_catalog(
    bind: Bind, *, run: str | None = None, since: Time = None, until: Time = None, kind: str | None = None
) -> GraphCatalog:
    """The graphs of a run, by default the newest that had begun before `until`, as of then; in the catalog's order.

    Sums are of the minutes that overlap `since` (included) to `until` (excluded). Raises InvalidFilter and StoreError.
    """
    first, last = filters.time_range(since, until)
    run_id, wanted = filters.identifier("run", run), filters.one_of("kind", kind, KINDS)
    with read_transaction(bind) as connection:
        engine_run = _run(connection, run_id, last)
        if engine_run is None:
            return GraphCatalog(None, None, "", [])
        found = _from_checkpoint(connection, engine_run, last) or _from_minutes(connection, engine_run, last)
        sums = _sums(connection, engine_run["run_id"], first, last)
    rows = []
    for row in found.rows:
        key = tuple(row[name] for name in SHAPE_COLUMNS)
        none = {"plans": 0, "device_ms_sum": 0.0, "device_ms_max": None, "device_ms_mean": None, "cost_ratio": None}
        rows.append({**row, **sums.get(key, none)})
    if wanted is not None:
        rows = [row for row in rows if row["kind"] == wanted]
    return dataclasses.replace(found, rows=rows)


def _run(connection: sa.Connection, run_id: str | None, until: dt.datetime | None) -> Row | None:
    query = sa.select(engine_runs).order_by(engine_runs.c.started_at.desc()).limit(1)
    if run_id is not None:
        query = query.where(engine_runs.c.run_id == run_id)
    elif until is not None:
        query = query.where(engine_runs.c.started_at < until)
    found = connection.execute(query).mappings().one_or_none()
    return None if found is None else dict(found)


def _last_plan(connection: sa.Connection, run: Row, until: dt.datetime | None) -> Row | None:
    """The run's newest plan, or its newest before `until`.

    By its key first: the plans by time are looked through, newest first, only where the run planned after `until` and
    so most likely shortly before it, too. A run that has planned nothing would be looked for among all plans.
    """
    p = plans.c
    query = sa.select(p.fence, p.committed_at, p.policy_version)
    newest = query.where(p.run_id == run["run_id"]).order_by(p.fence.desc()).limit(1)
    found = connection.execute(newest).mappings().one_or_none()
    if found is not None and until is not None and found["committed_at"] >= until:
        in_time = (p.committed_at < until, p.committed_at >= run["started_at"], among_times(p.run_id, run["run_id"]))
        order = (p.committed_at.desc(), p.run_id.desc(), p.fence.desc())
        found = connection.execute(query.where(*in_time).order_by(*order).limit(1)).mappings().one_or_none()
    return None if found is None else dict(found)


def _from_checkpoint(connection: sa.Connection, run: Row, until: dt.datetime | None) -> GraphCatalog | None:
    log = decision_log.c
    query = sa.select(log.blob).where(log.run_id == run["run_id"], log.is_checkpoint)
    if until is not None:
        last = _last_plan(connection, run, until)
        query = query.where(log.last_fence <= (0 if last is None else last["fence"]))
    blob = connection.execute(query.order_by(log.last_fence.desc(), log.first_call.desc()).limit(1)).scalar()
    if blob is None:
        return None
    try:
        now_ns, durations = durations_in(unpack_state(bytes(blob) if isinstance(blob, memoryview) else blob))
    except (InvalidCheckpoint, DamagedBlob):
        return None

    def wall(moment_ns: int) -> dt.datetime:
        since_start = (moment_ns - run["started_monotonic_ns"]) // 1000
        return dt.datetime.fromtimestamp(run["started_wall_ns"] // 10**9, dt.UTC) + dt.timedelta(
            microseconds=run["started_wall_ns"] % 10**9 // 1000 + since_start
        )

    rows = []
    for shape, estimate, samples in durations:
        seen_ns = estimate.observed_ns
        rows.append(
            {
                "run_id": run["run_id"],
                **_columns(shape),
                "shape": shape.label,
                "estimate_ms": estimate.duration_ns / 1e6 if estimate.known else None,
                "samples": samples,
                "cost_state": estimate.state.value,
                "completed_at": None if seen_ns is None else wall(seen_ns),
                "observation_age_ms": None if seen_ns is None else (now_ns - seen_ns) / 1e6,
            }
        )
    return GraphCatalog(run["run_id"], wall(now_ns), CHECKPOINT, rows)


def _columns(shape: GraphShape) -> dict[str, Any]:
    values = {name: getattr(shape, name) for name in SHAPE_COLUMNS}
    return {name: value.value if isinstance(value, GraphKind | Allocation) else value for name, value in values.items()}


def _from_minutes(connection: sa.Connection, run: Row, until: dt.datetime | None) -> GraphCatalog:
    """What the roll-up says of the run's last day: graphs that ran, each with the means of its last minute."""
    run_id, last = run["run_id"], _last_plan(connection, run, until)
    if last is None:
        return GraphCatalog(run_id, None, "", [])
    as_of, minutes = last["committed_at"], plan_minutes.c
    ttl_ns = connection.execute(
        sa.select(policy_versions.c.estimate_ttl_ns).where(policy_versions.c.version == last["policy_version"])
    ).scalar()
    # Ordered by minute, so that the last row of each graph is the one that counts.
    measured = (minutes.minute > as_of - REACH, minutes.minute <= as_of, minutes.run_id == run_id)
    shape = [minutes[name] for name in SHAPE_COLUMNS]
    predicted = sa.case((minutes.reason != "discovery", minutes.selected_cost_ms_sum))
    counted = sa.case((minutes.reason != "discovery", minutes.plans))
    newest = sa.select(*shape, sa.func.max(minutes.minute).label("minute")).where(*measured).group_by(*shape).subquery()
    query = (
        sa.select(
            *shape,
            minutes.minute,
            (sa.func.sum(predicted) / sa.func.nullif(sa.func.sum(counted), 0)).label("predicted_ms"),
            (sa.func.sum(minutes.device_ms_sum) / sa.func.sum(minutes.plans)).label("device_ms"),
        )
        .join(newest, sa.and_(*(newest.c[name] == minutes[name] for name in (*SHAPE_COLUMNS, "minute"))))
        .where(*measured)
        .group_by(*shape, minutes.minute)
        .order_by(*shape)
    )
    rows = []
    for found in connection.execute(query).mappings():
        seen = min(found["minute"] + MINUTE, as_of)
        age_ms = (as_of - seen).total_seconds() * 1e3
        fresh = age_ms * 1e6 <= (DEFAULT_TTL_NS if ttl_ns is None else ttl_ns)
        row = {"run_id": run_id, **{name: found[name] for name in SHAPE_COLUMNS}}
        rows.append(
            {
                **row,
                "shape": graph_label(row),
                "estimate_ms": found["device_ms"] if found["predicted_ms"] is None else found["predicted_ms"],
                "samples": None,
                "cost_state": (CostState.FRESH if fresh else CostState.STALE).value,
                "completed_at": seen,
                "observation_age_ms": age_ms,
            }
        )
    return GraphCatalog(run_id, as_of, ROLL_UP, rows)


def _sums(
    connection: sa.Connection, run_id: str, since: dt.datetime | None, until: dt.datetime | None
) -> dict[tuple[object, ...], Row]:
    """Per graph what it did in the minutes that overlap the span."""
    minutes = plan_minutes.c
    shape = [minutes[name] for name in SHAPE_COLUMNS]
    ordinary = minutes.reason != "discovery"
    query = sa.select(
        *shape,
        sa.func.sum(minutes.plans).label("plans"),
        sa.func.sum(minutes.device_ms_sum).label("device_ms_sum"),
        sa.func.max(minutes.device_ms_max).label("device_ms_max"),
        sa.func.sum(sa.case((ordinary, minutes.device_ms_sum))).label("observed"),
        sa.func.sum(sa.case((ordinary, minutes.selected_cost_ms_sum))).label("predicted"),
    ).where(minutes.run_id == run_id)
    if since is not None:
        query = query.where(minutes.minute > filters.earlier(since, MINUTE))
    if until is not None:
        query = query.where(minutes.minute < until)
    found = {}
    for row in connection.execute(query.group_by(*shape)).mappings():
        plans_ = int(row["plans"])
        found[tuple(row[name] for name in SHAPE_COLUMNS)] = {
            "plans": plans_,
            "device_ms_sum": row["device_ms_sum"],
            "device_ms_max": row["device_ms_max"],
            "device_ms_mean": row["device_ms_sum"] / plans_,
            "cost_ratio": row["observed"] / row["predicted"] if row["predicted"] else None,
        }
    return found
