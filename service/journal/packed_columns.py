"""Packed plans column by column, for whoever reads thousands of them: no object for a plan, a lane or a runner-up.

unpack_plan is the plain twin, one plan at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.journal.packed import MISFITS, Columns, Layout, Shapes, layout_of, misfit, named_graphs
from service.journal.records import PackedPlan


class PlanColumns(NamedTuple):
    """Some plans of one layout. Columns go by the names in the layout and hold the rows of all plans in turn.

    `lanes` and `others`: how many lanes and runners-up each plan has. `lane` and `detail`: of the lanes; `submitted`:
    of each plan's own candidate; `other`: of its runners-up, best first. `graphs`: what each plan names.
    """

    layout: Layout
    lanes: list[int]
    others: list[int]
    lane: Columns
    detail: Columns
    submitted: Columns
    other: Columns
    graphs: list[Shapes]


def read_columns(plans: Sequence[PackedPlan]) -> PlanColumns:
    """The columns of at least one plan, all of one layout. Raises UnknownLayout for a plan that does not fit it."""
    layout = layout_of(plans[0])
    lanes, others = _counts(layout, plans)
    one = layout.candidate.row_bytes
    return PlanColumns(
        layout,
        lanes,
        others,
        layout.lane.by_column(b"".join([plan.lanes for plan in plans])),
        layout.detail.by_column(b"".join([plan.details for plan in plans])),
        layout.candidate.by_column(b"".join([plan.candidates[:one] for plan in plans])),
        layout.candidate.by_column(b"".join([plan.candidates[one:] for plan in plans])),
        [_graphs(plan) for plan in plans],
    )


def _counts(layout: Layout, plans: Sequence[PackedPlan]) -> tuple[list[int], list[int]]:
    """Lanes and runners-up of each plan; every plan must have whole rows, or the next one's would be misread."""
    lane_bytes, detail_bytes = layout.lane.row_bytes, layout.detail.row_bytes
    candidate_bytes = layout.candidate.row_bytes
    lanes, others = [], []
    for plan in plans:
        count, cut = divmod(len(plan.lanes), lane_bytes)
        candidates, cut_too = divmod(len(plan.candidates), candidate_bytes)
        if cut or cut_too or not candidates or len(plan.details) != count * detail_bytes:
            raise misfit(plan, ValueError("its rows have other lengths"))
        lanes.append(count)
        others.append(candidates - 1)
    return lanes, others


def _graphs(plan: PackedPlan) -> Shapes:
    try:
        return named_graphs(bytes(plan.shapes))
    except MISFITS as error:
        raise misfit(plan, error) from error
