"""Rows of packed plans, column by column: nothing is made of a lane or a runner-up but its row.

The plain twin is RowBuilder with the record that unpack_plan makes of each plan; tests compare both.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from math import isfinite
from typing import Any, NamedTuple

from service.journal.packed import MISFITS, NO_SOURCE, SLOT, Columns, misfit, named_graphs, numbered
from service.journal.packed_columns import read_columns
from service.journal.records import PackedPlan
from service.recorder.plan_ends import PlanEnds
from service.recorder.rows import Row, RowBuilder, shape_values
from service.store.tables import SHAPE_COLUMNS

TableColumns = dict[str, Iterable[Any]]
"""Values of every column of a table, by name and in the table's order."""

KNOWN_VALUES = frozenset(
    ("run_id", "fence", "lane", "rank", "role", "proposal_source", "reason", "score_kind", "cost_state", "barred_by")
)
"""Columns whose values need no look: they come from here or from a layout's tables."""
_PARTS = (
    "token_value",
    "delivery_value",
    "age_relief",
    "terminal_relief",
    "prompt_wait_relief",
    "decode_late_relief",
    "wait_cost",
)


class _Graph(NamedTuple):
    """A graph's shape columns, kind and label."""

    shape: Row
    kind: str
    label: str


Graphs = dict[int, _Graph]


class _Names(NamedTuple):
    """Request ids of a plan's lanes, and of its runners-up as JSON; `made_of`: what they were made of."""

    lanes: list[str]
    others: list[Any]
    made_of: tuple[Any, ...]


class PackedRows:
    """The rows of at least one plan, all of one layout. Raises UnknownLayout for a plan that does not fit it."""

    def __init__(self, build: RowBuilder, plans: Sequence[PackedPlan]) -> None:
        self._build = build
        self._plans = plans
        self._columns = read_columns(plans)
        self._names = self._named()
        try:
            self._graphs = [_graphs_in(bytes(plan.shapes)) for plan in plans]
            submitted = self._columns.submitted
            reasons = numbered(self._columns.layout.reasons)
            self._reasons = [reasons[plan.reason] for plan in plans]
            self._shapes = [graphs[place].shape for graphs, place in zip(self._graphs, submitted["graph"], strict=True)]
        except MISFITS as error:
            raise misfit(plans[0], error) from error
        self._costs_ms = [ns / 1e6 for ns in submitted["selected_ns"]]

    @property
    def lanes(self) -> list[int]:
        """How many lanes each plan has."""
        return self._columns.lanes

    def request_ids(self) -> list[str]:
        """Of each lane of all plans in turn."""
        return list(chain.from_iterable([names.lanes for names in self._names]))

    def groups(self) -> list[tuple[Row, float]]:
        """Shape and reason of each plan, and its expected cost in ms."""
        named = zip(self._shapes, self._reasons, self._costs_ms, strict=True)
        return [((*shape, reason), cost_ms) for shape, reason, cost_ms in named]

    def tables(self, ends: PlanEnds) -> dict[str, TableColumns]:
        """The columns of plans, plan_lanes and plan_alternatives, with what is known of the plans' ends.

        Raises UnknownLayout, and OverflowError for a time beyond year 9999.
        """
        try:
            return {
                "plans": self._plan_columns(ends),
                "plan_lanes": self._lane_columns(ends),
                "plan_alternatives": self._other_columns(),
            }
        except MISFITS as error:
            raise misfit(self._plans[0], error) from error

    def _plan_columns(self, ends: PlanEnds) -> TableColumns:
        build, plans, table = self._build, self._plans, self._columns.submitted
        null, at = build.null, build.at
        timing_credit, timing_spent, timing_ordinary, credit, spent, ordinary, discovery = zip(
            *[plan.ledgers for plan in plans], strict=True
        )
        states = numbered(self._columns.layout.cost_states)
        return {
            "run_id": repeat(build.run_id),
            "fence": [plan.fence for plan in plans],
            "committed_at": [at(plan.committed_ns) for plan in plans],
            "committed_ns": [plan.committed_ns for plan in plans],
            **_shape_columns(self._shapes),
            "reason": self._reasons,
            **self._score(table, [plan.log_scale for plan in plans], self._graphs),
            "active_rows": self._columns.lanes,
            "active_decoders": [plan.active_decoders for plan in plans],
            "logical_rows": table["logical_rows"],
            "selected_cost_ms": self._costs_ms,
            "observation_age_ms": [
                (plan.planned_ns - observed_ns) / 1e6 if selected_ns else null
                for plan, observed_ns, selected_ns in zip(
                    plans, table["observed_ns"], table["selected_ns"], strict=True
                )
            ],
            "cost_state": [states[state] for state in table["cost_state"]],
            "margin": [null if (m := plan.margin) is None or not isfinite(m) else m for plan in plans],
            "candidates": [plan.priced for plan in plans],
            "exploration_credit_ms": [plan.exploration_credit_ns / 1e6 for plan in plans],
            "timing_credit_ms": timing_credit,
            "timing_spent_ms": timing_spent,
            "acceptance_credit_ms": credit,
            "acceptance_spent_ms": spent,
            "timing_ordinary_ms": timing_ordinary,
            "acceptance_ordinary_ms": ordinary,
            "discovery_ms": discovery,
            "queue_depth": [plan.queue_depth for plan in plans],
            "frame_slot": [plan.frame_slot for plan in plans],
            "policy_version": [plan.policy_version for plan in plans],
            "plan_us": [plan.plan_ns / 1e3 for plan in plans],
            **ends.columns,
            "deliveries": ends.deliveries,
        }

    def _lane_columns(self, ends: PlanEnds) -> TableColumns:
        columns = self._columns
        lane, detail, counts = columns.lane, columns.detail, columns.lanes
        roles = numbered(columns.layout.roles)
        null = self._build.null
        sources = {**numbered(columns.layout.sources), NO_SOURCE: null}
        return {
            "run_id": repeat(self._build.run_id),
            "fence": _spread([plan.fence for plan in self._plans], counts),
            "lane": list(chain.from_iterable(map(range, counts))),
            "request_id": self.request_ids(),
            "generation": lane["generation"],
            "role": [roles[role] for role in detail["role"]],
            "prompt_tokens": lane["prompt_tokens"],
            "query_length": lane["rows"],
            "ceiling": lane["ceiling"],
            "proposal_source": [sources[source] for source in lane["source"]],
            "token_price": detail["token_price"],
            "delivery_price": detail["delivery_price"],
            "age_ms": detail["age_ms"],
            "sigma_ms": detail["sigma_ms"],
            "expected_tokens": lane["expected_tokens"],
            "terminal_value": detail["terminal_value"],
            "lane_value": detail["value"],
            "offered_tokens": ends.offered,
            "committed_tokens": ends.committed,
            "accepted_tokens": ends.accepted,
            "delivered": [0 if ns is None else 1 for ns in ends.published_ns],
            "published_ns": [null if ns is None else ns for ns in ends.published_ns],
        }

    def _other_columns(self) -> TableColumns:
        columns, plans = self._columns, self._plans
        table, counts = columns.other, columns.others
        graphs = _spread(self._graphs, counts)
        states = numbered(columns.layout.cost_states)
        return {
            "run_id": repeat(self._build.run_id),
            "fence": _spread([plan.fence for plan in plans], counts),
            "rank": [rank + 1 for rank in chain.from_iterable(map(range, counts))],
            **_shape_columns([named[place].shape for named, place in zip(graphs, table["graph"], strict=True)]),
            **self._score(table, _spread([plan.log_scale for plan in plans], counts), graphs),
            "active_rows": table["lanes"],
            "request_ids": list(chain.from_iterable([names.others for names in self._names])),
            "selected_cost_ms": [ns / 1e6 for ns in table["selected_ns"]],
            "cost_state": [states[state] for state in table["cost_state"]],
            "barred_by": self._barred(table, _spread([plan.queue_depth > 0 for plan in plans], counts)),
        }

    def _score(self, table: Columns, log_scales: list[float], graphs: list[Graphs]) -> TableColumns:
        """What a candidate was worth; `graphs` are those that each one's plan names."""
        null = self._build.null
        following = [
            named[place] if place >= 0 else None for named, place in zip(graphs, table["following"], strict=True)
        ]
        return {
            "score_kind": ["rate" if known else "work" for known in table["known"]],
            "value_rate": table["score"],
            "log_scale": log_scales,
            **{name: table[name] for name in _PARTS},
            "score_horizon_ms": [
                ms if known and isfinite(ms) else null
                for known, ms in zip(table["known"], table["horizon_ms"], strict=True)
            ],
            "following_kind": [null if graph is None else graph.kind for graph in following],
            "following_shape": [null if graph is None else graph.label for graph in following],
        }

    def _barred(self, table: Columns, waits: list[bool]) -> list[str]:
        bars = numbered(self._columns.layout.barred)
        return [
            "needs_empty_window" if needs_empty == 1 and wait and bars[barred] == "none" else bars[barred]
            for barred, needs_empty, wait in zip(table["barred"], table["needs_empty"], waits, strict=True)
        ]

    def _named(self) -> list[_Names]:
        """The names in each plan. Neighbours mostly have the same requests, so the same names serve them."""
        columns = self._columns
        slots, counts, firsts = columns.lane["slot"], columns.other["lanes"], columns.submitted["lanes"]
        known: dict[bytes, _Names] = {}
        found = []
        lane = other = 0
        for plan, lanes, others, first in zip(self._plans, columns.lanes, columns.others, firsts, strict=True):
            made_of = (plan.request_ids, slots[lane : lane + lanes], first, counts[other : other + others])
            names = known.get(plan.slots)
            if names is None or names.made_of != made_of:
                try:
                    names = known[plan.slots] = self._named_lanes(plan, made_of)
                except MISFITS as error:
                    raise misfit(plan, error) from error
            found.append(names)
            lane, other = lane + lanes, other + others
        return found

    def _named_lanes(self, plan: PackedPlan, made_of: tuple[list[str], list[int], int, list[int]]) -> _Names:
        request_ids, lane_slots, first, counts = made_of
        slots = [slot for (slot,) in SLOT.iter_unpack(plan.slots)]
        name_of = dict(zip(dict.fromkeys(slots), request_ids, strict=True))
        names = [name_of[slot] for slot in slots]
        others = []
        for count in counts:
            others.append(self._build.json(names[first : first + count]))
            first += count
        if first != len(names):
            raise ValueError(f"{len(names)} slots where the candidates have {first} lanes")
        return _Names([name_of[slot] for slot in lane_slots], others, made_of)


def rows_of(columns: Mapping[str, Iterable[Any]]) -> list[Row]:
    """A table's rows. Columns that repeat one value may have no end."""
    return list(zip(*columns.values(), strict=False))


@functools.lru_cache(4096)
def _graphs_in(encoded: bytes) -> Graphs:
    graphs = named_graphs(encoded).items()
    return {place: _Graph(shape_values(shape), shape.kind, label) for place, (shape, label) in graphs}


def _shape_columns(shapes: list[Row]) -> TableColumns:
    columns: Iterable[Row] = zip(*shapes, strict=True) if shapes else repeat(())
    return dict(zip(SHAPE_COLUMNS, columns, strict=False))


def _spread(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Each value as many times as its count says."""
    return list(chain.from_iterable(map(repeat, values, counts)))
