"""Which traffic is replayed: the window, and the pieces of it that stand for a window too long to be replayed whole."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Protocol

import sqlalchemy as sa

from service.control.preview.errors import NothingRecorded
from service.control.preview.messages import Sampled
from service.store.traffic import Extent, RecordedRun, extent, find_run, last_plan_at

MOST_PLANS = 60_000
"""Recorded plans that one policy replays."""
MOST_LANES = 600_000
"""Lanes that are read of one window."""
MOST_PLANS_IN_ALL = 360_000
"""Recorded plans that all policies of a preview replay together, so that a wide sweep does not take half an hour."""
MOST_PIECES = 8
SHORTEST_PIECE = dt.timedelta(seconds=20)
"""Pieces are so long at least, where the window allows it: load and queues need time to be what they were."""
LAST_WORDS = dt.timedelta(milliseconds=100)
"""Behind the newest plan: what it made becomes visible then."""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """From `since` up to `until`."""

    since: dt.datetime
    until: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """What is replayed of one run. `shortened`: how much of the window lies before anything was recorded, in words."""

    run: RecordedRun
    since: dt.datetime
    until: dt.datetime
    pieces: tuple[Piece, ...]
    sampled: Sampled | None
    shortened: str = ""


class Wanted(Protocol):
    """Which traffic; PreviewRequest says it."""

    @property
    def run_id(self) -> str | None: ...
    @property
    def minutes(self) -> float: ...
    @property
    def until(self) -> dt.datetime | None: ...


def choose(engine: sa.Engine, request: Wanted, policies: int) -> Chosen:
    """The window and its pieces; `policies` will be replayed on it. Raises NothingRecorded and StoreError."""
    run = find_run(engine, request.run_id, request.until)
    if run is None:
        which = "of this run" if request.run_id is not None else "before this time" if request.until else "yet"
        raise NothingRecorded(f"no plan was recorded {which}, so there is no traffic to replay")
    last_at = last_plan_at(engine, run)
    if last_at is None:
        raise NothingRecorded(f"run {run.run_id} has planned nothing yet, so there is no traffic to replay")
    until = min(request.until or last_at + LAST_WORDS, last_at + LAST_WORDS)
    since = until - dt.timedelta(minutes=request.minutes)
    found = extent(engine, run, since, until)
    if not found.plans or found.first_at is None:
        raise NothingRecorded(
            f"run {run.run_id} planned nothing in the {request.minutes:g} min before {until:%Y-%m-%d %H:%M:%S} UTC: "
            "choose a longer window or another end"
        )
    shortened = ""
    if since < run.started_at:
        since = run.started_at
        shortened = f"The run began {_words(until - since)} before the window's end; there is no more to replay."
    pieces, sampled = pieces_of(since, until, found, policies)
    return Chosen(run, since, until, pieces, sampled, shortened)


def pieces_of(
    since: dt.datetime, until: dt.datetime, found: Extent, policies: int
) -> tuple[tuple[Piece, ...], Sampled | None]:
    """The whole window, or pieces spread evenly over it, each as busy as it was."""
    plans = min(MOST_PLANS, MOST_PLANS_IN_ALL // max(1, policies))
    share = min(1.0, plans / max(1, found.plans), MOST_LANES / max(1, found.lanes))
    if share >= 1.0:
        return (Piece(since, until),), None
    length = until - since
    count = max(1, min(MOST_PIECES, int(length * share / SHORTEST_PIECE)))
    stride, piece = length / count, length * share / count
    starts = [since + number * stride + (stride - piece) / 2 for number in range(count)]
    words = (
        f"The window holds {found.plans:,} plans, more than are replayed for each policy; {count} "
        f"{'stretch' if count == 1 else 'stretches'} of {_words(piece)}, spread evenly, stand for it: {share:.1%} of "
        "its time."
    )
    return tuple(Piece(start, start + piece) for start in starts), Sampled(share, count, words)


def _words(length: dt.timedelta) -> str:
    seconds = length.total_seconds()
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
