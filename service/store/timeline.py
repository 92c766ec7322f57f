"""The view `plan_timeline`: plans as bars on a time axis, with the gap before each one and the policy behind it."""

from __future__ import annotations

import functools

import sqlalchemy as sa

from scheduler.errors import InvalidShape
from scheduler.policy import COEFFICIENTS
from scheduler.shapes import GraphKind, GraphShape
from service.store import filters
from service.store.queries import Bind, Row, Time, rows_of, within
from service.store.tables import plans, policy_versions
from service.store.types import UtcDateTime

plan_timeline = sa.table(
    "plan_timeline",
    *[sa.column(c.name, c.type) for c in plans.columns],
    sa.column("gap_ms", sa.Float()),
    sa.column("policy_actor", sa.Text()),
    sa.column("policy_note", sa.Text()),
    sa.column("policy_preset", sa.Text()),
    sa.column("policy_applied_at", UtcDateTime()),
    *[sa.column(c.name, policy_versions.c[c.name].type) for c in COEFFICIENTS],
)
BAR_COLUMNS = (
    *("run_id", "fence", "committed_at", "committed_ns", "started_ns", "completed_at", "completed_ns", "outcome"),
    *("kind", "batch_capacity", "draft_depth", "target_width", "target_rows", "prefill_capacity", "reason"),
    *("score_kind", "value_rate", "margin", "selected_cost_ms", "cost_state", "device_ms", "gap_ms", "active_rows"),
    *("queue_depth", "prompt_tokens", "output_tokens", "policy_version"),
)
_LABEL_COLUMNS = ("kind", "batch_capacity", "draft_depth", "target_width", "target_rows", "prefill_capacity")


def timeline(
    bind: Bind, *, limit: int | str = 200, since: Time = None, until: Time = None, run: str | None = None
) -> list[Row]:
    """The newest `limit` plans, newest first: BAR_COLUMNS and `label`, the shape's short form.

    `gap_ms` is the device's idle time before the plan, None for a run's first plan and for one that has not started.
    Raises InvalidFilter and StoreError.
    """
    view = plan_timeline.c
    query = within(sa.select(*[view[name] for name in BAR_COLUMNS]), view.committed_at, since, until)
    if filters.identifier("run", run) is not None:
        query = query.where(view.run_id == run)
    order = (view.committed_at.desc(), view.run_id.desc(), view.fence.desc())
    rows = rows_of(bind, query.order_by(*order).limit(filters.limit_filter(limit)))
    return [{**row, "label": shape_label(row)} for row in rows]


def shape_label(row: Row) -> str:
    """The short form of a row's shape columns, as `shape=` filters take it: `decode:B4`."""
    return _label(*(row[name] for name in _LABEL_COLUMNS))


@functools.lru_cache(maxsize=4096)
def _label(kind: str, batch: int, depth: int, width: int, rows: int, prefill: int) -> str:
    try:
        return GraphShape(GraphKind(kind), batch, depth, width, rows, prefill).label
    except (InvalidShape, ValueError):  # a kind or bound of another version
        return f"{kind}:B{batch}"
