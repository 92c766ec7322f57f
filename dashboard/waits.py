"""Where one request waited: before its first plan, between its prompt's chunks and between its rounds. Pure.

A wait is a time in which none of the request's own plans was on the device. It counts when it was longer than one of
its own plans usually takes, and SHORTEST_MS at the least: shorter ones are the pace of a shared device.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import statistics
from collections.abc import Sequence

from dashboard.score import Row

SHORTEST_MS = 2.0
MOST_WAITS = 5
# Before a request's first plan: whatever ran was committed so much earlier at the most. Two frames are in flight.
_EARLIER = dt.timedelta(seconds=15)

FIRST, PROMPT, ROUND, RESUMED, OPEN = "first", "prompt", "round", "resumed", "open"


@dataclasses.dataclass(frozen=True, slots=True)
class Clock:
    """One moment on both clocks: `at` in UTC and `ns` of the run's monotonic clock."""

    at: dt.datetime
    ns: int

    def ns_of(self, moment: dt.datetime) -> int:
        """A UTC moment on the monotonic clock, to the microsecond."""
        return self.ns + (moment - self.at) // dt.timedelta(microseconds=1) * 1000

    def at_of(self, moment_ns: int) -> dt.datetime:
        """A monotonic moment in UTC."""
        return self.at + dt.timedelta(microseconds=(moment_ns - self.ns) // 1000)


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """From `start_ns` to `end_ns`, both monotonic. `after` and `before` are the fences of the request's own plans.

    `kind`: FIRST before its first plan, PROMPT between chunks of its prompt, ROUND between rounds of output, RESUMED
    where its state had to be made again, OPEN while it still waits. `begins` and `ends` are the wait itself in UTC;
    whatever ran in it was committed from `since` to `ends`.
    """

    kind: str
    start_ns: int
    end_ns: int
    begins: dt.datetime
    ends: dt.datetime
    since: dt.datetime
    after: int | None
    before: int | None

    @property
    def ms(self) -> float:
        """How long."""
        return (self.end_ns - self.start_ns) / 1e6


def find_waits(request: Row, lanes: Sequence[Row], clock: Clock, now: dt.datetime) -> tuple[list[Wait], int]:
    """The longest MOST_WAITS waits that count, in their order in time, and how many count in all.

    `lanes` are the request's, by fence, with the columns of their plans.
    """
    shortest_ms = threshold_ms(lanes)
    found = [wait for wait in all_waits(request, lanes, clock, now) if wait.ms >= shortest_ms]
    longest = sorted(found, key=lambda wait: -wait.ms)[:MOST_WAITS]
    return sorted(longest, key=lambda wait: wait.start_ns), len(found)


def threshold_ms(lanes: Sequence[Row]) -> float:
    """The shortest wait that counts: as long as the request's own plans usually take."""
    own = [lane["device_ms"] for lane in lanes if lane["device_ms"] is not None]
    return max(SHORTEST_MS, statistics.median(own) if own else 0.0)


def all_waits(request: Row, lanes: Sequence[Row], clock: Clock, now: dt.datetime) -> list[Wait]:
    """Every wait of the request, however short, in its order in time."""
    begins = clock.ns_of(request["arrived_at"]) + int((request["tokenize_ms"] or 0.0) * 1e6)
    waits: list[Wait] = []
    after: Row | None = None
    free_ns, has_output = begins, False
    for lane in lanes:
        start_ns = lane["started_ns"] if lane["started_ns"] is not None else lane["committed_ns"]
        if start_ns > free_ns:
            waits.append(_wait(_kind(after, has_output, lane), (free_ns, start_ns), clock, after, lane["fence"]))
        free_ns = max(free_ns, start_ns if lane["completed_ns"] is None else lane["completed_ns"])
        has_output, after = has_output or lane["committed_tokens"] > 0, lane
    end = now if request["finished_at"] is None else request["finished_at"]
    is_running = bool(lanes) and lanes[-1]["outcome"] == "in_flight"
    unserved = not lanes or request["finished_at"] is None
    if unserved and not is_running and clock.ns_of(end) > free_ns:
        waits.append(_wait(OPEN, (free_ns, clock.ns_of(end)), clock, after, None))
    return waits


def _kind(after: Row | None, has_output: bool, lane: Row) -> str:
    if after is None:
        return FIRST
    if not has_output:
        return PROMPT
    return RESUMED if lane["role"] in ("prefill", "restore") else ROUND


def _wait(kind: str, span_ns: tuple[int, int], clock: Clock, after: Row | None, before: int | None) -> Wait:
    begins, ends = clock.at_of(span_ns[0]), clock.at_of(span_ns[1])
    since = begins - _EARLIER if after is None else after["committed_at"]
    return Wait(kind, *span_ns, begins, ends, since, None if after is None else after["fence"], before)
