"""What a guard is made of: its limits, what was found, and how a limit is judged. Records and pure functions only."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

from service.control.errors import InvalidGuard

GuardState = Literal["watching", "held", "rolled_back", "ended"]
Verdict = Literal["holds", "broken", "too_few"]
GUARD_ACTOR = "guard"
"""Who made a version that a guard's decision restored."""
LEAST_MINUTES = 0.01
MOST_MINUTES = 24 * 60.0
DEFAULT_MINUTES = 15.0
MOST_SAMPLES = 1_000_000
MOST_ABSOLUTE = 1e9
MOST_RATIO = 100.0


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """One bound: `ratio` times the hour before, or an `absolute` value in the measure's unit; exactly one is given.

    `samples`: how many the trial needs, and with a ratio the hour before, so that it can be decided.
    """

    ratio: float | None = None
    absolute: float | None = None
    samples: int = 100

    def bound(self, before: Measure) -> float | None:
        """What may not be passed; None while the hour before has too few samples for a ratio."""
        if self.ratio is None:
            return self.absolute
        if before.value is None or before.samples < self.samples:
            return None
        return self.ratio * before.value


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

    def given(self) -> dict[str, Limit]:
        """The limits that are not left out, by name."""
        return {name: limit for name in LIMIT_NAMES if (limit := getattr(self, name)) is not None}

    def as_dict(self) -> dict[str, dict[str, Any] | None]:
        """As HTTP and the store have them."""
        found = {name: getattr(self, name) for name in LIMIT_NAMES}
        return {name: None if limit is None else dataclasses.asdict(limit) for name, limit in found.items()}

    def summary(self) -> dict[str, str]:
        """A word for each limit, for the audit: `1.1x` of the hour before, or the absolute value."""
        words = {n: f"{v.absolute:g}" if v.ratio is None else f"{v.ratio:g}x" for n, v in self.given().items()}
        return {name: f"{word} of {self.given()[name].samples} samples" for name, word in words.items()}


LIMIT_NAMES = tuple(field.name for field in dataclasses.fields(GuardLimits))
UNITS = {"first_token_p99": "ms", "inter_token_p99": "ms", "throughput": "tokens per busy second"}
WORDS = {
    "first_token_p99": "the p99 of first-token times",
    "inter_token_p99": "the p99 of inter-token times",
    "throughput": "the throughput",
}
AT_LEAST = frozenset({"throughput"})
"""Measures that may not fall below their bound; the others may not rise above it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """One measure of a span of time, in its unit; `value` is None without samples."""

    value: float | None
    samples: int


@dataclasses.dataclass(frozen=True, slots=True)
class Measures:
    """The three measures of one span of time."""

    first_token_p99: Measure
    inter_token_p99: Measure
    throughput: Measure


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

    def sentence(self) -> str:
        """What was found, in words."""
        words, unit = WORDS[self.name], UNITS[self.name]
        if self.bound is None or self.value is None or self.samples < self.needed:
            return f"{words} rests on {self.samples:,} samples, and {self.needed:,} are needed"
        side = ("below" if self.name in AT_LEAST else "above") if self.verdict == "broken" else "within"
        found = f"{words} is {self.value:.4g} {unit} ({self.samples:,} samples)"
        return f"{found}, {side} the limit of {self.bound:.4g}"


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

    def as_dict(self) -> dict[str, Any]:
        """As HTTP and the store have it; times are RFC 3339 text."""
        found = dataclasses.asdict(self)
        times = {n: v.isoformat().replace("+00:00", "Z") for n, v in found.items() if isinstance(v, dt.datetime)}
        return {**found, **times, "checks": list(found["checks"]), "problems": list(self.problems)}


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


@dataclasses.dataclass(frozen=True, slots=True)
class GuardTerms:
    """What a change is guarded with: for how many minutes, by which limits, and what the hour before was like."""

    minutes: float
    limits: GuardLimits
    evidence: Evidence


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """How a guard is closed, in the transaction of the version that replaces the guarded one."""

    reason: str
    evidence: Evidence


def judge(limits: GuardLimits, before: Measures, now: Measures) -> tuple[LimitCheck, ...]:
    """Each given limit with its verdict. Equal to the bound holds."""
    return tuple(
        _check(name, limit, getattr(before, name), getattr(now, name)) for name, limit in limits.given().items()
    )


def _check(name: str, limit: Limit, before: Measure, now: Measure) -> LimitCheck:
    bound = limit.bound(before)
    verdict: Verdict = "holds"
    if bound is None or now.value is None or now.samples < limit.samples:
        verdict = "too_few"
    elif now.value < bound if name in AT_LEAST else now.value > bound:
        verdict = "broken"
    return LimitCheck(name, bound, before.value, before.samples, now.value, now.samples, limit.samples, verdict)


def checked_minutes(minutes: object) -> float:
    """How long a guard watches. Raises InvalidGuard."""
    if not _is_number(minutes) or not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        raise InvalidGuard("minutes", f"must be a number from {LEAST_MINUTES:g} to {MOST_MINUTES:g}")
    return float(minutes)


def checked_limits(limits: GuardLimits) -> GuardLimits:
    """The limits, if they can be used. Raises InvalidGuard."""
    if not limits.given():
        raise InvalidGuard("limits", "are all left out; give at least one")
    for name, limit in limits.given().items():
        values = [v for v in (limit.ratio, limit.absolute) if v is not None]
        if len(values) != 1:
            raise InvalidGuard(f"limits.{name}", "needs a ratio or an absolute value, and not both")
        most = MOST_ABSOLUTE if limit.ratio is None else MOST_RATIO
        if not _is_number(values[0]) or not 0 < values[0] <= most:
            raise InvalidGuard(f"limits.{name}", f"must be a number above 0 and up to {most:g}")
        if isinstance(limit.samples, bool) or not isinstance(limit.samples, int):
            raise InvalidGuard(f"limits.{name}", "must have a whole number of samples")
        if not 1 <= limit.samples <= MOST_SAMPLES:
            raise InvalidGuard(f"limits.{name}", f"must need from 1 to {MOST_SAMPLES:,} samples")
    return limits


def limits_from(given: object) -> GuardLimits:
    """Limits from JSON: measures by name, each null or {"ratio" | "absolute", "samples"?}; what is not named has its
    default. Raises InvalidGuard.
    """
    if not isinstance(given, Mapping):
        raise InvalidGuard("limits", "must be an object of measures and their limits")
    unknown = [str(name)[:40] for name in given if name not in LIMIT_NAMES]
    if unknown:
        raise InvalidGuard("limits", f"has no {unknown[0]!r}; the measures are {', '.join(LIMIT_NAMES)}")
    default = GuardLimits()
    found = {name: _limit_from(name, value, getattr(default, name)) for name, value in given.items()}
    return checked_limits(dataclasses.replace(default, **found))


def _limit_from(name: str, given: object, default: Limit) -> Limit | None:
    if given is None:
        return None
    if not isinstance(given, Mapping) or not set(given) <= {"ratio", "absolute", "samples"}:
        raise InvalidGuard(f"limits.{name}", "must be null or an object of ratio or absolute, and samples")
    ratio, absolute, samples = (given.get(key) for key in ("ratio", "absolute", "samples"))
    if ratio is None and absolute is None:
        ratio = default.ratio
    return Limit(ratio, absolute, default.samples if samples is None else samples)


def evidence_from(stored: Mapping[str, Any]) -> Evidence:
    """Evidence as `as_dict` wrote it."""
    times = {
        name: None if stored[name] is None else dt.datetime.fromisoformat(stored[name])
        for name in ("before_since", "before_until", "checked_at", "read_until")
    }
    checks = tuple(LimitCheck(**check) for check in stored["checks"])
    return Evidence(**times, watched_s=stored["watched_s"], checks=checks, problems=tuple(stored["problems"]))  # type: ignore[arg-type]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
