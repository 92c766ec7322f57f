"""What the timeline shows, as records: read by dashboard.queries.timeline, drawn by dashboard.figures.timeline."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

from dashboard.bins import Binned

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)
PlanRow = dict[str, Any]
Span = tuple[dt.datetime, dt.datetime]


@dataclasses.dataclass(frozen=True, slots=True)
class Filters:
    """Which plans; None: all. `request`: those that served it."""

    run: str | None = None
    kind: str | None = None
    reason: str | None = None
    outcome: str | None = None
    policy_version: int | None = None
    request: str | None = None

    @property
    def passes_all(self) -> bool:
        """Whether every plan of a run's range passes; ranges are of the filter's run already."""
        return self.kind is None and self.reason is None and self.outcome is None and self.policy_version is None


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """Plans in a row that served one request: when the first began and the last ended, in µs since 1970."""

    since_us: int
    until_us: int
    kind: str
    reason: str
    plans: int


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """One request; `graph_at`: when its first graph began. Times that are not known yet are None."""

    row: dict[str, Any]
    graph_at: dt.datetime | None
    served: Sequence[Served]


@dataclasses.dataclass(frozen=True, slots=True)
class Lives:
    """Requests of a span in the order of arrival. `found`: how many there are; the shown ones waited longest."""

    lives: Sequence[Life]
    found: int

    @property
    def marks(self) -> int:
        """How many marks it takes to draw them."""
        return sum(3 + len(life.served) for life in self.lives)


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """An engine began to plan with a policy version: at its start, or because somebody (`actor`) changed it."""

    at: dt.datetime
    version: int
    run_id: str
    at_start: bool
    actor: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Hole:
    """A part of the trace that is missing, between two plans; both ends alike: only when it was noticed is known."""

    since: dt.datetime
    until: dt.datetime
    plans: int | None
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Events:
    """Within a span, oldest first, some of the newest: `change_count` says how many changes there are."""

    changes: Sequence[Change]
    change_count: int
    holes: Sequence[Hole]


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """One view of the timeline. `since` and `until`: its span; of the newest plans, from the first to the last.

    `level`: plans, bins or minutes. `total`: plans in view that pass the filters; more than the rows where only the
    newest are shown. `rows`: the plans (newest first), or of bins the longest plans. `binned` is None for plans.
    """

    level: str
    since: dt.datetime
    until: dt.datetime
    total: int
    rows: Sequence[PlanRow]
    binned: Binned | None
    lives: Lives
    events: Events


def to_us(at: dt.datetime) -> int:
    """Whole microseconds since 1970."""
    return (at - EPOCH) // MICROSECOND


def from_us(at_us: int) -> dt.datetime:
    """The time of `to_us`."""
    return EPOCH + dt.timedelta(microseconds=at_us)
