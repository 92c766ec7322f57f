"""The last minute in plain words: what ran, why, how long requests waited, and who waits now."""

from __future__ import annotations

import dataclasses
from typing import Any

from dash import dcc, html

from dashboard.formatting import count, milliseconds, words
from dashboard.minute import KindShare, Minute, SlowStart, percentile
from dashboard.queries.last_minute import MINUTE
from dashboard.routing import timeline_path

REASON_WORDS = {
    "ordinary": "had the best score",
    "discovery": "ran to be measured for the first time",
    "timing_refresh": "ran to be measured again",
    "acceptance_learning": "ran to learn how often drafts are accepted",
    "solo_prefill": "were a prompt with nothing beside it",
    "token_budget": "were what the token budget gave",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One fact of the minute; `request` is linked behind the text."""

    heading: str
    text: str
    request: str | None = None

    def render(self) -> Any:
        """A definition-list pair."""
        link: list[Any] = []
        if self.request is not None:
            link = [" ", dcc.Link("Its plans", href=timeline_path(request=self.request))]
        return html.Div([html.Div(self.heading, className="minute-heading"), html.Div([self.text, *link])])


def minute_lines(found: Minute) -> list[Line]:
    """The minute's facts, what ran first. Without any plan only what waits is told."""
    ran = [] if not found.kinds else [Line("Why", _why(found)), Line("Tokens", _tokens(found.kinds))]
    started = [] if not found.starts_ms else [Line("First token", _starts(found.starts_ms))]
    slowest = []
    if found.slowest is not None:
        slowest = [Line("Slowest to start", _slowest(found.slowest), found.slowest.request_id)]
    return [Line("What ran", _what(found.kinds)), *ran, *started, *slowest, Line("Waiting now", _waiting(found))]


def _what(kinds: list[KindShare]) -> str:
    if not kinds:
        return "Nothing: no plan was chosen, the device was idle."
    busy = sum(kind.busy_ms for kind in kinds)
    parts = [
        f"{count(kind.plans)} {words(kind.kind)} plan{'' if kind.plans == 1 else 's'} kept the device busy "
        f"{_share(kind.busy_ms)} of the time"
        for kind in kinds
    ]
    total = f"; {_share(busy)} in all" if len(kinds) > 1 else ""
    return ", ".join(parts) + total + "."


def _share(busy_ms: float) -> str:
    ratio = busy_ms / (MINUTE.total_seconds() * 1e3)
    return f"{ratio:.0%}".replace("%", " %") if ratio >= 0.01 or ratio == 0 else "under 1 %"


def _why(found: Minute) -> str:
    reasons = [f"{count(n)} {REASON_WORDS.get(reason, words(reason))}" for reason, n in found.reasons.items()]
    versions = " and ".join(str(version) for version in found.versions)
    return f"{', '.join(reasons)}; under policy version{'' if len(found.versions) == 1 else 's'} {versions}."


def _tokens(kinds: list[KindShare]) -> str:
    prompt, output = sum(kind.prompt_tokens for kind in kinds), sum(kind.output_tokens for kind in kinds)
    return f"{count(prompt)} prompt tokens read, {count(output)} output tokens made."


def _starts(starts_ms: list[float]) -> str:
    if len(starts_ms) == 1:
        return f"One request got its first token, {_time(starts_ms[0])} after it arrived."
    half, most = percentile(starts_ms, 0.5), percentile(starts_ms, 0.99)
    return (
        f"{count(len(starts_ms))} requests got their first token: half within {_time(half)}, "
        f"99 % within {_time(most)} of arriving."
    )


def _slowest(slow: SlowStart) -> str:
    text = f"{slow.request_id} took {_time(slow.start_ms)}"
    if slow.queue_ms is None:
        return f"{text} from arrival to its first token."
    tokenize = "" if slow.tokenize_ms is None else f" ({_time(slow.tokenize_ms)} of it tokenizing)"
    return (
        f"{text}: {_time(slow.queue_ms)} until its first graph{tokenize}, then "
        f"{_time(max(0.0, slow.start_ms - slow.queue_ms))} for its {count(slow.prompt_tokens)} prompt tokens."
    )


def _waiting(found: Minute) -> str:
    if not found.waiting:
        return "No request waits for its first graph."
    many = found.waiting > 1
    oldest = (
        ""
        if found.oldest_wait_ms is None
        else f"; {'the oldest' if many else 'it'} arrived {_time(found.oldest_wait_ms)} ago"
    )
    return f"{count(found.waiting)} request{'s have' if many else ' has'} been in no graph yet{oldest}."


def _time(value_ms: float) -> str:
    """Times that people wait: seconds from one second on."""
    return f"{value_ms / 1e3:,.1f} s" if value_ms >= 1000 else milliseconds(value_ms)
