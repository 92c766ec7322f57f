"""Ragged speculative rounds, whose target rows do not suffice for full lanes (specification S4)."""

from __future__ import annotations

from scheduler.plans import Role
from scheduler.reference.candidates import Candidate, Use, decode_use, single
from scheduler.reference.decision import Graph
from scheduler.reference.extents import uses_forecast
from scheduler.reference.value import Context, Lane, Parts, total_of
from scheduler.shapes import Allocation

Cells = dict[tuple[int, int], tuple[float, tuple[int, ...]]]
"""(lanes, rows) of a cohort -> its total value and its members, as indices of the decoding lanes in slot order."""


def ragged_candidates(context: Context, graph: Graph) -> list[Candidate]:
    """The best cohort with at most B lanes and P rows; none without a decoding lane that fits."""
    if not context.decoding:
        return []
    return fixed_candidates(context, graph) if context.decision.fixed_width else adaptive_candidates(context, graph)


def fixed_candidates(context: Context, graph: Graph) -> list[Candidate]:
    """Complete prefixes: the cohort of highest total value, by dynamic programming over exact lanes and rows."""
    shape = graph.shape
    uses = [decode_use(context, graph, lane, context.rows(lane, graph), graph.duration_ms) for lane in context.decoding]
    ticks = [use.lane.tick for use in uses]
    cells: Cells = {(0, 0): (0.0, ())}
    for i, use in enumerate(uses):
        extended = dict(cells)
        for (lanes, rows), (total, members) in cells.items():
            place = lanes + 1, rows + use.rows
            if place[0] <= shape.batch_capacity and place[1] <= shape.target_rows:
                cell = total + use.parts.value, (*members, i)
                if place not in extended or _cell_order(cell, ticks) < _cell_order(extended[place], ticks):
                    extended[place] = cell
        cells = extended
    del cells[0, 0]
    if not cells:
        return []
    best = min(cells, key=lambda place: _final_order(place, cells[place], ticks))
    return [single(context, graph, [uses[i] for i in cells[best][1]])]


def _cell_order(cell: tuple[float, tuple[int, ...]], ticks: list[int]) -> tuple[object, ...]:
    total, members = cell
    return -total, sorted(ticks[i] for i in members), members


def _final_order(place: tuple[int, int], cell: tuple[float, tuple[int, ...]], ticks: list[int]) -> tuple[object, ...]:
    (lanes, rows), (total, members) = place, cell
    return -total, -lanes, sorted(ticks[i] for i in members), -rows, members


def adaptive_candidates(context: Context, graph: Graph) -> list[Candidate]:
    """Every prefix of three orderings, each with its causal allocation; the first of the highest score wins.

    An equal score wins with more lanes. (Bounded search: other cohorts are not looked at.)
    """
    parts = {lane.slot: _parts_by_rows(context, graph, lane) for lane in context.decoding}
    most = min(graph.shape.batch_capacity, graph.shape.target_rows, len(context.decoding))
    best: tuple[float, list[Lane], list[int]] | None = None
    for ordering in _orderings(context.decoding, parts):
        leading = ordering[:most]
        prefixes = _Prefixes(context, graph, leading, [parts[lane.slot] for lane in leading])
        for count in range(1, most + 1):
            rows = prefixes.allocation(count)
            score = prefixes.score(rows)
            if best is None or score > best[0] or (score == best[0] and count > len(best[1])):
                best = score, leading[:count], rows
    assert best is not None, "a decoding lane always fits one row"
    uses = [_allocated(graph, lane, rows, parts[lane.slot]) for lane, rows in zip(best[1], best[2], strict=True)]
    return [single(context, graph, uses, priced=3 * most)]


def _parts_by_rows(context: Context, graph: Graph, lane: Lane) -> list[Parts]:
    """The lane's parts with 1, 2, ... rows(shape) rows."""
    most = context.rows(lane, graph)
    return [context.decode_parts(lane, graph, rows, graph.duration_ms) for rows in range(1, most + 1)]


def _orderings(lanes: list[Lane], parts: dict[int, list[Parts]]) -> list[list[Lane]]:
    """The lanes by total value, by the pending token's value, and by value per row; ties LRU, slot."""
    total = {slot: by_rows[-1].value for slot, by_rows in parts.items()}
    pending = {slot: by_rows[0].value for slot, by_rows in parts.items()}
    per_row = {slot: total[slot] / len(by_rows) for slot, by_rows in parts.items()}
    return [sorted(lanes, key=lambda x: (-by[x.slot], x.tick, x.slot)) for by in (total, pending, per_row)]


def _allocated(graph: Graph, lane: Lane, rows: int, parts: list[Parts]) -> Use:
    """Host allocation fixes the rows; under device allocation they are expected, and the ceiling stays open."""
    device = graph.shape.allocation is Allocation.DEVICE
    return Use(lane, Role.DECODE, rows, 0, len(parts) if device else rows, parts[rows - 1])


class _Prefixes:
    """Prefixes of one ordering of lanes, priced on one graph. `parts`: of each lane by rows, from 1."""

    def __init__(self, context: Context, graph: Graph, leading: list[Lane], parts: list[list[Parts]]) -> None:
        self._context, self._graph, self._parts = context, graph, parts
        place = {lane.slot: i for i, lane in enumerate(leading)}
        frontier = context.frontiers[uses_forecast(graph.shape)]
        places = [(place[slot], depth) for slot, depth in frontier if slot in place]
        self._entries = [i for i, depth in places if depth < len(parts[i])]

    def allocation(self, count: int) -> list[int]:
        """Rows of the first `count` lanes: one each, the others of P to the most likely drafts.

        Survival never rises with depth and ties go to the lower depth, so each lane's drafts come in order.
        """
        rows = [1] * count
        left = self._graph.shape.target_rows - count
        for i in self._entries:
            if left == 0:
                break
            if i < count:
                rows[i] += 1
                left -= 1
        return rows

    def score(self, rows: list[int]) -> float:
        """The score of the first lanes with these rows, but for what is the same for every prefix."""
        sums = total_of(self._parts[i][r - 1] for i, r in enumerate(rows))
        return self._context.comparison(sums, self._graph.duration_ms if self._graph.known else None)
