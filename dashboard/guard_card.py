"""A guarded change as people read it: what was limited, what is found so far, and how long it still takes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from dashboard.formatting import NOTHING, age, count, milliseconds, quantity, utc
from dashboard.markup import aria
from dashboard.routing import POLICY_PATH, timeline_path
from service.control.guards import Guard, Limit, LimitCheck

NAMES: Mapping[str, str] = {
    "first_token_p99": "First token p99",
    "inter_token_p99": "Inter-token p99",
    "throughput": "Throughput, per busy second",
}
VERDICTS: Mapping[str, str] = {"holds": "holds", "broken": "broken", "too_few": "too few samples"}
STATES: Mapping[str, str] = {
    "watching": "on trial",
    "held": "held to the end, and stays",
    "rolled_back": "taken back",
    "ended": "ended by hand",
}
UNTIL_FIRST_LOOK = "Nothing was looked at yet; the first figures come within seconds."


def amount(name: str, value: float | None) -> str:
    """A value in its limit's unit: `812 ms`, `312 tokens/s`; a dash for None."""
    if value is None:
        return NOTHING
    return f"{quantity(value)} tokens/s" if name == "throughput" else milliseconds(value)


def limit_words(name: str, limit: Limit) -> str:
    """A limit as it was asked for: `at most 110 % of before`, `at least 300 tokens/s`."""
    side = "at least" if name == "throughput" else "at most"
    if limit.ratio is not None:
        return f"{side} {limit.ratio * 100:g} % of before"
    return f"{side} {amount(name, limit.absolute)}"


def headline(guard: Guard) -> str:
    """`Version 5 is on trial` and the like."""
    if guard.state == "watching":
        return f"Version {guard.version} is on trial"
    return f"The trial of version {guard.version}: {STATES[guard.state]}"


def time_left(guard: Guard, now: dt.datetime) -> str:
    """How much of a trial is left, or when it was decided."""
    if guard.state != "watching":
        return f"decided {utc(guard.decided_at)}"
    left_s = (guard.until - now).total_seconds()
    whole = age(guard.minutes * 60e3)
    return f"{age(left_s * 1e3)} left of {whole}" if left_s > 0 else f"its {whole} are over; the last figures are read"


def guard_words(guard: Guard, now: dt.datetime) -> str:
    """The line under the heading: who, since when, what happens if a limit breaks."""
    if guard.state != "watching":
        return f"Opened by {guard.actor}, {utc(guard.opened_at)}; {time_left(guard, now)}. {_sentence(guard.reason)}"
    return (
        f"Applied by {guard.actor}, {utc(guard.opened_at)}; {time_left(guard, now)}. If a limit breaks, or cannot be "
        f"judged by the end, version {guard.parent}'s values come back by themselves."
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("." if text and not text.endswith(".") else "")


def evidence(guard: Guard) -> list[Any]:
    """The table of limits, and what stands against a verdict."""
    found = {check.name: check for check in guard.evidence.checks}
    limits = [(name, getattr(guard.limits, name)) for name in NAMES]
    rows = [_row(name, limit, found.get(name)) for name, limit in limits if limit is not None]
    heads = ("Limit", "Asked for", "Hour before", "Bound", "Now", "Samples", "Verdict")
    parts: list[Any] = [
        html.Div(
            html.Table(
                [
                    html.Caption(f"Limits of version {guard.version}'s trial", className="unseen"),
                    html.Thead(html.Tr([html.Th(head, scope="col") for head in heads])),
                    html.Tbody(rows),
                ],
                className="guard-table digits",
            ),
            className="sideways",
            tabIndex="0",
            role="group",
            **aria(label=f"Limits of version {guard.version}'s trial"),
        )
    ]
    if not found:
        parts.append(html.P(UNTIL_FIRST_LOOK, className="muted"))
    parts += [html.P(_sentence(problem), className="bad") for problem in guard.evidence.problems]
    if guard.evidence.read_until is not None:
        watched = age(guard.evidence.watched_s * 1e3)
        text = f"The trace was read up to {utc(guard.evidence.read_until)}; watched for {watched}."
        parts.append(html.P([text, " ", _plans(guard)], className="muted"))
    return parts


def _plans(guard: Guard) -> Any:
    return dcc.Link(f"Plans under version {guard.version}", href=timeline_path(guard.version))


def _row(name: str, limit: Limit, check: LimitCheck | None) -> Any:
    words = VERDICTS[check.verdict] if check else "not judged yet"
    judged = check.verdict if check else "too_few"
    needed = check.needed if check else limit.samples
    samples = f"{count(check.samples if check else 0)} of {count(needed)}"
    return html.Tr(
        [
            html.Th(NAMES[name], scope="row"),
            html.Td(limit_words(name, limit)),
            html.Td(amount(name, check.before if check else None)),
            html.Td(amount(name, check.bound if check else None)),
            html.Td(amount(name, check.value if check else None), className="now"),
            html.Td(samples),
            html.Td(html.Span(words, className=f"judgement {judged}")),
        ]
    )


def guard_card(guard: Guard, now: dt.datetime) -> Any:
    """The whole card for a page that shows a guard and leads to where it is ended."""
    return html.Section(
        [
            html.H2(headline(guard)),
            html.P(guard_words(guard, now)),
            *evidence(guard),
            html.P(dcc.Link("Roll back or keep it on the policy page", href=POLICY_PATH)),
        ],
        className="card guard",
        role="status",
    )
