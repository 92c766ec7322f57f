"""What completions and publications say about plans, lane by lane."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

from service.journal.records import LaneOutcome, OutputPublished, PlanCompleted
from service.recorder.changes import PLAN_END
from service.recorder.rows import Row, RowBuilder, checked_output, outcome_columns

_NOTHING = LaneOutcome(0, 0, 0, 0)


class PlanEnds:
    """What is known of the ends of some plans, column by column.

    `done` and `publications` are those of each plan, `lanes` how many lanes it has. Raises what RowBuilder.plan_end
    raises. `columns`: PLAN_END of each plan, by name; `deliveries` of each plan; `offered`, `committed` and `accepted`
    tokens and `published_ns`, which may be None, of each lane of all plans in turn.
    """

    def __init__(
        self,
        build: RowBuilder,
        lanes: Sequence[int],
        done: Sequence[PlanCompleted | None],
        publications: Sequence[Sequence[OutputPublished]],
    ) -> None:
        self._build = build
        outcomes = [_nothing_of(count) if end is None else end.lanes for count, end in zip(lanes, done, strict=True)]
        by_lane = outcome_columns(list(chain.from_iterable(outcomes)))
        if list(map(len, outcomes)) == lanes and by_lane[0] == tuple(chain.from_iterable(map(range, lanes))):
            self.columns = self._in_lane_order(lanes, done, by_lane)  # as it nearly always is
        else:
            rows = [self._in_flight() if end is None else build.plan_end(end) for end in done]
            self.columns = dict(zip(PLAN_END, zip(*rows, strict=True), strict=True))
            known = [lane_outcomes(end, count) for count, end in zip(lanes, done, strict=True)]
            by_lane = outcome_columns([lane or _NOTHING for lane in chain.from_iterable(known)])
        _, _, self.committed, self.accepted, self.offered, _ = by_lane
        self.deliveries = [deliveries(plan) for plan in publications]
        self.published_ns: list[int | None] = []
        for count, plan in zip(lanes, publications, strict=True):
            self.published_ns += published_lanes(plan, count)

    def _in_lane_order(
        self, lanes: Sequence[int], done: Sequence[PlanCompleted | None], by_lane: Sequence[Row]
    ) -> dict[str, Sequence[Any]]:
        build, null = self._build, self._build.null
        _, prompt, committed, accepted, offered, drafts = by_lane
        output = _sums(committed, lanes)
        checked_output(max(output, default=0), committed)
        return {
            "started_ns": [null if end is None else end.started_ns for end in done],
            "completed_at": [null if end is None else build.at(end.completed_ns) for end in done],
            "completed_ns": [null if end is None else end.completed_ns for end in done],
            "outcome": ["in_flight" if end is None else end.outcome for end in done],
            "device_ms": [null if end is None else end.device_ns / 1e6 for end in done],
            "wall_ms": [null if end is None else end.wall_ns / 1e6 for end in done],
            "exposed_delivery_ms": [null if end is None else end.exposed_delivery_ns / 1e6 for end in done],
            "prompt_tokens": _sums(prompt, lanes),
            "output_tokens": output,
            "offered_tokens": _sums(offered, lanes),
            "draft_tokens": _sums(drafts, lanes),
            "accepted_tokens": _sums(accepted, lanes),
        }

    def _in_flight(self) -> Row:
        null = self._build.null
        return (null, null, null, "in_flight", null, null, null, 0, 0, 0, 0, 0)


def _sums(column: Sequence[int], lanes: Sequence[int]) -> list[int]:
    """The sum over each plan's lanes."""
    if not any(column):
        return [0] * len(lanes)
    return [sum(column[end - count : end]) for count, end in zip(lanes, accumulate(lanes), strict=True)]


@functools.lru_cache(1024)
def _nothing_of(lanes: int) -> list[LaneOutcome]:
    return [LaneOutcome(number, 0, 0, 0) for number in range(lanes)]


@functools.lru_cache(1024)
def _numbers(lanes: int) -> list[int]:
    return list(range(lanes))


def lane_outcomes(done: PlanCompleted | None, lanes: int) -> Sequence[LaneOutcome | None]:
    """What is known of each lane of a plan; an outcome of no lane is left out."""
    if done is None:
        return [None] * lanes
    if [outcome.lane for outcome in done.lanes] == _numbers(lanes):  # as it nearly always is
        return done.lanes
    known = {outcome.lane: outcome for outcome in done.lanes}
    return [known.get(number) for number in range(lanes)]


def published_lanes(publications: Sequence[OutputPublished], lanes: int) -> list[int | None]:
    """When each lane of a plan was published last, ns, or None."""
    if len(publications) == 1 and publications[0].lanes == _numbers(lanes):  # as it nearly always is
        return [publications[0].published_ns] * lanes
    published: list[int | None] = [None] * lanes
    for publication in publications:
        for number in publication.lanes:
            if 0 <= number < lanes:
                published[number] = publication.published_ns
    return published


def deliveries(publications: Sequence[OutputPublished]) -> int:
    """How many times a lane was published."""
    return sum([len(publication.lanes) for publication in publications])
