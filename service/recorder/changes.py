"""Changes to rows that an earlier transaction stored, described once and written as SQL for either database.

A change's row holds its key (`run_id` first) and then its new values, in the order given here; a transaction has at
most one row for a key. All inserts run before all changes, and changes run in this order.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import sqlalchemy as sa

from service.store import tables

_PLAN = ("run_id", "fence")
_LANE = ("run_id", "fence", "lane")
_REQUEST = ("run_id", "request_id")
PLAN_END = (
    "started_ns", "completed_at", "completed_ns", "outcome", "device_ms", "wall_ms", "exposed_delivery_ms",
    "prompt_tokens", "output_tokens", "offered_tokens", "draft_tokens", "accepted_tokens",
)  # fmt: skip
REQUEST_END = (
    "finished_at", "output_tokens", "finish_reason", "error", "preemptions", "queue_ms", "prefill_ms", "decode_ms",
    "publish_ms",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """An update of `table`: `sets` are (column, expression of {old} and {new}), `only` a condition of the same kind."""

    table: sa.Table
    key: tuple[str, ...]
    sets: tuple[tuple[str, str], ...]
    only: str = ""

    @property
    def columns(self) -> tuple[sa.Column[Any], ...]:
        """The columns that a row of values belongs to, in the row's order."""
        return tuple(self.table.c[name] for name in (*self.key, *(name for name, _ in self.sets)))

    def update_one(self) -> str:
        """SQLite: one row's values are the parameters ?1, ?2, …"""
        new = {column.name: f"?{index}" for index, column in enumerate(self.columns, 1)}
        sets = ", ".join(f"{name} = {text.format(old=name, new=new[name])}" for name, text in self.sets)
        where = " AND ".join(f"{name} = {new[name]}" for name in self.key)
        return f"UPDATE {self.table.name} SET {sets} WHERE {where}{self._only(new)}"

    def update_from(self, staged: str) -> str:
        """PostgreSQL: the rows of values are in the table `staged`, under the columns' names, and leave it."""
        table = self.table.name
        new = {column.name: f"moved.{column.name}" for column in self.columns}
        sets = ", ".join(f"{name} = {text.format(old=f'{table}.{name}', new=new[name])}" for name, text in self.sets)
        where = " AND ".join(f"{table}.{name} = {new[name]}" for name in self.key)
        moved = f"WITH moved AS (DELETE FROM {staged} RETURNING *)"
        return f"{moved} UPDATE {table} SET {sets} FROM moved WHERE {where}{self._only(new)}"

    def _only(self, new: dict[str, str]) -> str:
        return f" AND {self.only.format(table=self.table.name, new=new[self.sets[0][0]])}" if self.only else ""


def _replaced(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "{new}") for name in names)


CHANGES = {
    "admitted": Change(tables.requests, _REQUEST, _replaced("admitted_at", "cached_tokens")),
    "completed": Change(tables.plans, _PLAN, _replaced(*PLAN_END)),
    "lane_outcomes": Change(
        tables.plan_lanes, _LANE, _replaced("offered_tokens", "committed_tokens", "accepted_tokens")
    ),
    "deliveries": Change(tables.plans, _PLAN, (("deliveries", "{old} + {new}"),)),
    "lane_deliveries": Change(tables.plan_lanes, _LANE, _replaced("delivered", "published_ns")),
    "first_outputs": Change(
        tables.requests,
        _REQUEST,
        _replaced("first_output_at"),
        "({table}.first_output_at IS NULL OR {table}.first_output_at > {new})",
    ),
    "progress": Change(tables.requests, _REQUEST, (("output_tokens", "{old} + {new}"),), "{table}.finished_at IS NULL"),
    "finished": Change(tables.requests, _REQUEST, _replaced(*REQUEST_END)),
}
