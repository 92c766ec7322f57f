"""Reads of recorded traffic, to replay it: who came when, what ran, for whom, and how long it took.

All of one engine run. Times `_ns` are on the run's monotonic clock, as in `plans`. Functions take an engine or a
connection, are synchronous, raise StoreError and read no more rows than they say.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from service.journal.calls import ADMIT
from service.store.decision_log import DamagedBlob, unpack_calls, unpack_state
from service.store.engines import read_transaction
from service.store.partitions import RECORDED_ON, UNNAMED_DAY, has_days
from service.store.queries import Bind
from service.store.tables import (
    SHAPE_COLUMNS,
    decision_log,
    engine_runs,
    plan_lanes,
    plan_minutes,
    plans,
    policy_versions,
    requests,
)

LONGEST_OPEN = dt.timedelta(hours=1)
"""How long before a window a request may have come that is still open in it."""
_BATCH = 5_000
_IDS_AT_ONCE = 500


class RecordedRun(NamedTuple):
    """One engine run. `settings`: what it was started with. `ended_at`: None while it runs."""

    run_id: str
    model: str
    device: str
    settings: Mapping[str, Any]
    started_at: dt.datetime
    ended_at: dt.datetime | None
    wall_ns: int
    monotonic_ns: int

    def ns(self, at: dt.datetime) -> int:
        """A wall time on the run's clock."""
        since = at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        wall_ns = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
        return wall_ns - self.wall_ns + self.monotonic_ns


class Extent(NamedTuple):
    """How much a window holds. Fences and times of its plans; None without any."""

    plans: int
    lanes: int
    first_fence: int | None
    last_fence: int | None
    first_at: dt.datetime | None
    last_at: dt.datetime | None


class RecordedRequest(NamedTuple):
    """One request. `finished_ns`: None while it runs; `output_tokens` are then those so far."""

    request_id: str
    model: str
    prefix_key: str | None
    arrived_ns: int
    admitted_ns: int | None
    finished_ns: int | None
    tokenize_ns: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int
    finish_reason: str | None
    preemptions: int


class RecordedPlan(NamedTuple):
    """One plan; `shape` has the values of SHAPE_COLUMNS. Times and `device_ns` are None until it has completed."""

    fence: int
    shape: tuple[Any, ...]
    reason: str
    queue_depth: int
    policy_version: int
    committed_ns: int
    started_ns: int | None
    completed_ns: int | None
    device_ns: int | None
    output_tokens: int


class RecordedLane(NamedTuple):
    """One lane of a plan. `published_ns`: when its output became visible, None without."""

    fence: int
    request_id: str
    prompt_tokens: int
    offered_tokens: int
    committed_tokens: int
    accepted_tokens: int
    proposal_source: str | None
    published_ns: int | None


def find_run(bind: Bind, run_id: str | None, until: dt.datetime | None) -> RecordedRun | None:
    """The run of this id, or the one that planned last before `until`."""
    with read_transaction(bind) as connection:
        if run_id is None:
            newest = sa.select(plans.c.run_id).order_by(plans.c.committed_at.desc()).limit(1)
            if until is not None:
                newest = newest.where(plans.c.committed_at < until)
            run_id = connection.execute(newest).scalar_one_or_none()
        names = ("run_id", "model", "device", "settings", "started_at", "ended_at")
        columns = [engine_runs.c[name] for name in (*names, "started_wall_ns", "started_monotonic_ns")]
        row = connection.execute(sa.select(*columns).where(engine_runs.c.run_id == run_id)).one_or_none()
    return None if row is None else RecordedRun(*row)


def last_plan_at(bind: Bind, run: RecordedRun) -> dt.datetime | None:
    """When the run's newest plan had completed; when it was committed where that is not known."""
    c = plans.c
    newest = sa.select(c.completed_at, c.committed_at).where(c.run_id == run.run_id).order_by(c.fence.desc()).limit(1)
    with read_transaction(bind) as connection:
        row = connection.execute(newest).one_or_none()
    return None if row is None else row[0] or row[1]


def extent(bind: Bind, run: RecordedRun, since: dt.datetime, until: dt.datetime) -> Extent:
    """How much the run planned from `since` up to `until`."""
    c = plans.c
    sums = (sa.func.count(), sa.func.coalesce(sa.func.sum(c.active_rows), 0))
    ends = (sa.func.min(c.fence), sa.func.max(c.fence), sa.func.min(c.committed_at), sa.func.max(c.committed_at))
    with read_transaction(bind) as connection:
        row = connection.execute(sa.select(*sums, *ends).where(*_in_window(run, since, until))).one()
    return Extent(int(row[0]), int(row[1]), *row[2:])


def read_plans(bind: Bind, run: RecordedRun, since: dt.datetime, until: dt.datetime) -> list[RecordedPlan]:
    """The run's plans that were committed from `since` up to `until`, by fence. As many as `extent` counts."""
    c = plans.c
    shape = [c[name] for name in SHAPE_COLUMNS]
    times = (c.committed_ns, c.started_ns, c.completed_ns, c.device_ms, c.output_tokens)
    query = sa.select(c.fence, c.reason, c.queue_depth, c.policy_version, *times, *shape)
    found = []
    with read_transaction(bind) as connection:
        for row in connection.execute(query.where(*_in_window(run, since, until)).order_by(c.fence)):
            fence, reason, depth, version, committed, started, completed, device_ms, output, *values = row
            device_ns = None if device_ms is None or started is None else round(device_ms * 1e6)
            found.append(
                RecordedPlan(
                    fence, tuple(values), reason, depth, version, committed, started, completed, device_ns, output
                )
            )
    return found


def read_lanes(
    bind: Bind, run: RecordedRun, fences: tuple[int, int], days: tuple[dt.date, dt.date]
) -> Iterator[RecordedLane]:
    """Lanes of the plans from the first to the last of `fences`, by fence; `days`: the UTC days of these plans."""
    c = plan_lanes.c
    query = sa.select(*[c[name] for name in RecordedLane._fields])
    query = query.where(c.run_id == run.run_id, c.fence >= fences[0], c.fence <= fences[1])
    if has_days(bind):
        query = query.where(sa.or_(RECORDED_ON.between(*days), RECORDED_ON == UNNAMED_DAY))
    with read_transaction(bind) as connection:
        answer = connection.execution_options(yield_per=_BATCH).execute(query.order_by(c.fence, c.lane))
        for row in answer:
            yield RecordedLane(*row)


def read_requests(bind: Bind, run: RecordedRun, since: dt.datetime, until: dt.datetime) -> list[RecordedRequest]:
    """Requests that came before `until` and had not ended before `since`, by arrival; see LONGEST_OPEN."""
    c = requests.c
    query = sa.select(
        c.request_id, c.model, c.prefix_key, c.arrived_at, c.admitted_at, c.finished_at, c.tokenize_ms,
        c.prompt_tokens, c.cached_tokens, c.output_tokens, c.max_tokens, c.finish_reason, c.preemptions,
    ).where(
        c.run_id == run.run_id,
        c.arrived_at >= since - LONGEST_OPEN,
        c.arrived_at < until,
        sa.or_(c.finished_at.is_(None), c.finished_at >= since),
    )  # fmt: skip
    with read_transaction(bind) as connection:
        rows = connection.execute(query.order_by(c.arrived_at, c.request_id)).all()
    return [_request(run, *row) for row in rows]


def _request(
    run: RecordedRun,
    request_id: str,
    model: str,
    prefix_key: str | None,
    arrived_at: dt.datetime,
    admitted_at: dt.datetime | None,
    finished_at: dt.datetime | None,
    tokenize_ms: float | None,
    *counts: Any,
) -> RecordedRequest:
    return RecordedRequest(
        request_id,
        model,
        prefix_key,
        run.ns(arrived_at),
        None if admitted_at is None else run.ns(admitted_at),
        None if finished_at is None else run.ns(finished_at),
        round((tokenize_ms or 0.0) * 1e6),
        *counts,
    )


def progress_before(bind: Bind, run: RecordedRun, request_ids: Sequence[str], fence: int) -> dict[str, tuple[int, int]]:
    """Prompt tokens computed and output tokens committed for these requests by plans before `fence`."""
    c = plan_lanes.c
    sums = (sa.func.sum(c.prompt_tokens), sa.func.sum(c.committed_tokens))
    found: dict[str, tuple[int, int]] = {}
    with read_transaction(bind) as connection:
        for at in range(0, len(request_ids), _IDS_AT_ONCE):
            some = request_ids[at : at + _IDS_AT_ONCE]
            query = sa.select(c.request_id, *sums).where(c.run_id == run.run_id, c.request_id.in_(some))
            for name, prompt, output in connection.execute(query.where(c.fence < fence).group_by(c.request_id)):
                found[name] = (int(prompt), int(output))
    return found


def mean_device_ns(bind: Bind, run: RecordedRun) -> dict[tuple[Any, ...], int]:
    """By values of SHAPE_COLUMNS: the mean device time of the run's plans, from the minutes that are still kept."""
    c = plan_minutes.c
    shape = [c[name] for name in SHAPE_COLUMNS]
    query = sa.select(sa.func.sum(c.device_ms_sum), sa.func.sum(c.plans), *shape)
    with read_transaction(bind) as connection:
        rows = connection.execute(query.where(c.run_id == run.run_id).group_by(*shape)).all()
    return {tuple(row[2:]): max(1, round(row[0] / int(row[1]) * 1e6)) for row in rows if row[0]}


def checkpoint_before(bind: Bind, run: RecordedRun, fence: int) -> bytes | None:
    """The scheduler's state that was written down last before the plan of `fence`; None when it is not kept."""
    c = decision_log.c
    query = sa.select(c.blob).where(c.run_id == run.run_id, c.is_checkpoint, c.last_fence < fence)
    with read_transaction(bind) as connection:
        blob = connection.execute(query.order_by(c.first_call.desc()).limit(1)).scalar_one_or_none()
    try:
        return None if blob is None else unpack_state(blob)
    except DamagedBlob:
        return None


def read_admissions(bind: Bind, run: RecordedRun, fences: tuple[int, int]) -> dict[str, dict[str, Any]]:
    """How requests were let in around these plans, as RequestSpec has it: by request id, the first time of each.

    Rows of the decision log that are damaged or of another version are left out.
    """
    c = decision_log.c
    query = sa.select(c.blob).where(
        c.run_id == run.run_id, sa.not_(c.is_checkpoint), c.last_fence >= fences[0] - 1, c.first_fence <= fences[1] + 1
    )
    found: dict[str, dict[str, Any]] = {}
    with read_transaction(bind) as connection:
        for (blob,) in connection.execution_options(yield_per=16).execute(query.order_by(c.first_call)):
            for fields in _admissions(blob):
                found.setdefault(str(fields.get("request_id")), fields)
    return found


def _admissions(blob: bytes) -> list[dict[str, Any]]:
    try:
        entries = [entry for piece in unpack_calls(blob) for entry in msgspec.msgpack.decode(piece)]
    except (DamagedBlob, msgspec.MsgspecError, TypeError, UnicodeDecodeError, RecursionError):
        return []
    lists = (entry for entry in entries if isinstance(entry, list) and len(entry) == 2 and entry[0] == ADMIT)
    return [fields for _, fields in lists if isinstance(fields, dict)]


def policy_values(bind: Bind, versions: Sequence[int], names: Sequence[str]) -> dict[int, dict[str, Any]]:
    """The coefficients of policy versions that the store has, by version."""
    columns = [policy_versions.c[name] for name in names]
    query = sa.select(policy_versions.c.version, *columns).where(policy_versions.c.version.in_(list(versions)))
    with read_transaction(bind) as connection:
        return {row[0]: dict(zip(names, row[1:], strict=True)) for row in connection.execute(query)}


def _in_window(run: RecordedRun, since: dt.datetime, until: dt.datetime) -> tuple[sa.ColumnElement[bool], ...]:
    c = plans.c
    return c.run_id == run.run_id, c.committed_at >= since, c.committed_at < until
