"""Guarded changes of the policy: a version on trial for a chosen time, taken back by itself when it breaks a limit.

A guard is opened with the change that it watches: the version is marked applied and the guard written in one
transaction, so neither exists without the other. While one watches, the store's trace is compared with the hour before:

    watching ──► held          every limit held to the end: the version stays
        │
        ├──────► rolled_back   a limit was broken, or nothing could be decided: a version by "guard" restores the values
        └──────► ended         somebody ended it, or replaced or rolled back the version by hand

A change while a guard watches is refused (GuardWatches) unless it says that it ends the guard; a rollback always may.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from service.control.policy import PolicyControl

GuardState = Literal["watching", "held", "rolled_back", "ended"]
Verdict = Literal["holds", "broken", "too_few"]
GUARD_ACTOR = "guard"
"""Who made a version that a guard's decision restored."""
LEAST_MINUTES = 0.01
MOST_MINUTES = 24 * 60.0
DEFAULT_MINUTES = 15.0


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """One bound: `ratio` times the hour before, or an `absolute` value in the measure's unit; exactly one is given.

    `samples`: how many the trial needs, and with a ratio the hour before, so that it can be decided.
    """

    ratio: float | None = None
    absolute: float | None = None
    samples: int = 100


@dataclasses.dataclass(frozen=True, slots=True)
class GuardLimits:
    """What must hold; None leaves a measure out, at least one is given.

    `first_token_p99`: ms from arrival to the first visible output, at most; its samples are requests that arrived under
    the version. `inter_token_p99`: ms between two publications of one request, at most, as flare_inter_token_seconds
    counts them; its samples are such gaps. `throughput`: output tokens for each second that the device was busy, at
    least; its samples are completed plans. Per busy second, since tokens per second of the clock fall with the traffic.
    A p99 is the nearest rank: the smallest sample that at least 99 % of them do not exceed.
    """

    first_token_p99: Limit | None = Limit(ratio=1.10, samples=100)
    inter_token_p99: Limit | None = Limit(ratio=1.10, samples=1_000)
    throughput: Limit | None = Limit(ratio=0.95, samples=100)


LIMIT_NAMES = tuple(field.name for field in dataclasses.fields(GuardLimits))
UNITS = {"first_token_p99": "ms", "inter_token_p99": "ms", "throughput": "tokens per busy second"}


@dataclasses.dataclass(frozen=True, slots=True)
class LimitCheck:
    """One limit and what was found, in the unit of UNITS. `bound`: what `value` may not pass; None without a basis.

    `before` and `before_samples` are of the hour before, `value` and `samples` of the trial; None: no sample.
    """

    name: str
    bound: float | None
    before: float | None
    before_samples: int
    value: float | None
    samples: int
    needed: int
    verdict: Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """What a guard's state rests on. `read_until`: the trace up to here was looked at.

    `watched_s`: seconds of the trial in which the store answered, the engine was ready and somebody looked. `problems`:
    why it could not be decided so far, in words; empty when nothing stands against it.
    """

    before_since: dt.datetime
    before_until: dt.datetime
    checked_at: dt.datetime | None = None
    read_until: dt.datetime | None = None
    watched_s: float = 0.0
    checks: tuple[LimitCheck, ...] = ()
    problems: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Guard:
    """One guarded version. It watches from `opened_at` to `until`; `parent` is the version whose values come back.

    `reason`: the decision in one sentence, empty while it watches. Times are aware UTC.
    """

    version: int
    parent: int
    minutes: float
    limits: GuardLimits
    actor: str
    state: GuardState
    opened_at: dt.datetime
    until: dt.datetime
    decided_at: dt.datetime | None
    reason: str
    evidence: Evidence


class GuardControl:
    """Opens, shows and ends guards through one PolicyControl. Holds nothing itself: make one wherever it is needed."""

    def __init__(self, policy: PolicyControl) -> None:
        self._policy = policy

    async def open(
        self,
        *,
        expected_version: int,
        minutes: float = DEFAULT_MINUTES,
        limits: GuardLimits | None = None,
        preset: str | None = None,
        coefficients: Mapping[str, Any] | None = None,
        actor: str,
        note: str = "",
        end_guard: bool = False,
    ) -> Guard:
        """Applies a change like PolicyControl.change, with a guard that watches it; without `limits` the default ones.

        Reads the hour before first, so that it may take a second. Raises what `change` raises, InvalidGuard for minutes
        or limits that cannot be used, for values that change nothing, and for a ratio to an hour that has too few
        samples, and GuardWatches while another one watches, unless `end_guard`.
        """
        raise NotImplementedError

    async def current(self) -> Guard | None:
        """The one that watches, with the evidence so far. Raises StoreError."""
        raise NotImplementedError

    async def history(self, limit: int = 20) -> list[Guard]:
        """The newest guards, newest first, the watching one too. Raises StoreError."""
        raise NotImplementedError

    async def end(self, *, expected_version: int, rollback: bool = False, actor: str, note: str = "") -> Guard:
        """Ends the watching guard and keeps its version or, with `rollback`, restores the values before it.

        Returns the guard as it ended. Raises NoGuard when none watches version `expected_version`, and what
        PolicyControl.rollback raises.
        """
        raise NotImplementedError
