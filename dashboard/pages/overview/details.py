"""What a span of time was spent on, in tables: kinds and reasons of plans, slow requests, how requests ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from dashboard.formatting import count, milliseconds, percent, quantity, utc, words
from dashboard.palette import UNKNOWN_KIND_COLOUR, kind_colour
from dashboard.queries.latencies import Percentiles
from dashboard.queries.trends import MAX_REQUESTS, Share, Trends
from dashboard.routing import REQUESTS_PATH, TIMELINE_PATH, path_with, request_path
from dashboard.score import Row

REASON_WORDS = {
    "ordinary": "had the best score",
    "discovery": "measured for the first time",
    "timing_refresh": "measured again",
    "acceptance_learning": "to learn acceptance",
    "solo_prefill": "a prompt with nothing beside it",
    "token_budget": "what the token budget gave",
}
FINISH_WORDS = {
    "stop": "ended by themselves",
    "length": "reached their limit",
    "abort": "given up by the client",
    "error": "failed",
    None: "still open",
}
NOTHING_RAN = "No plan ended in this time."


def details(trends: Trends) -> list[Any]:
    """The cards under the charts."""
    return [
        _card("What the device did", _shares(trends, trends.kinds, "kind")),
        _card("Why", _shares(trends, trends.reasons, "reason")),
        _card("Slowest first tokens", _slowest(trends.slowest)),
        _card("How requests ended", _finishes(trends)),
    ]


def chart_words(trends: Trends) -> dict[str, str]:
    """The sentence above each chart: `tokens`, `first_token`, `between` and `device`."""
    seconds = max(trends.seconds, 1e-9)
    tokens = sum(bucket.tokens for bucket in trends.buckets)
    busy = sum(share.busy_ms for share in trends.kinds) / seconds / 1e3
    return {
        "tokens": f"{count(tokens)} tokens, {quantity(tokens / seconds)} a second" if tokens else "no tokens",
        "first_token": _percentiles(trends.first_token, trends.capped),
        "between": _percentiles(trends.between, trends.capped),
        "device": f"busy {percent(min(1.0, busy))} of the time" if busy else "idle",
    }


def _percentiles(found: Percentiles, capped: bool) -> str:
    if not found.count:
        return "no requests"
    of = f"the newest {count(MAX_REQUESTS)} requests" if capped else f"{count(found.count)} request"
    plural = "" if capped or found.count == 1 else "s"
    return f"half within {milliseconds(found.p50)}, 99 % within {milliseconds(found.p99)}, of {of}{plural}"


def _card(title: str, content: Any) -> Any:
    return html.Section([html.H3(title), content], className="card")


def _shares(trends: Trends, shares: Sequence[Share], by: str) -> Any:
    """Each name leads to its plans in the timeline."""
    if not shares:
        return html.P(NOTHING_RAN, className="muted")
    whole_ms = max(trends.seconds * 1e3, 1e-9)
    heads = ("", "Device time", "", "Plans", "Mean", "Longest", *(["Tokens"] if by == "kind" else []))
    return _table(heads, [_share(share, trends, by, whole_ms) for share in shares])


def _share(share: Share, trends: Trends, by: str, whole_ms: float) -> Any:
    name = words(share.name) if by == "kind" else REASON_WORDS.get(share.name, words(share.name))
    colour = kind_colour(share.name) if by == "kind" else UNKNOWN_KIND_COLOUR
    href = path_with(TIMELINE_PATH, **{by: share.name}, **trends.span.query)
    ratio = min(1.0, share.busy_ms / whole_ms)
    bar = html.Span(className="share-bar", style={"width": f"{ratio * 100:.2f}%", "backgroundColor": colour})
    return html.Tr(
        [
            html.Th(dcc.Link(name, href=href), scope="row"),
            html.Td(html.Span(bar, className="share-track"), className="share-cell"),
            html.Td(percent(ratio)),
            html.Td(count(share.plans)),
            html.Td(milliseconds(share.busy_ms / max(share.plans, 1))),
            html.Td(milliseconds(share.longest_ms)),
            *([html.Td(count(share.tokens))] if by == "kind" else []),
        ]
    )


def _slowest(rows: Sequence[Row]) -> Any:
    if not rows:
        return html.P("No request that arrived in this time has got a first token.", className="muted")
    heads = ("Request", "First token", "Queue", "Prompt", "Arrived")
    return _table(heads, [_slow(row) for row in rows])


def _slow(row: Row) -> Any:
    link = dcc.Link(row["request_id"], href=request_path(row["run_id"], row["request_id"]))
    return html.Tr(
        [
            html.Th(link, scope="row", className="long-name"),
            html.Td(milliseconds(row["start_ms"])),
            html.Td(milliseconds(row["queue_ms"])),
            html.Td(count(row["prompt_tokens"])),
            html.Td(f"{row['arrived_at']:%b %-d, %H:%M:%S}", title=utc(row["arrived_at"])),
        ]
    )


def _finishes(trends: Trends) -> Any:
    total = sum(trends.finishes.values())
    if not total:
        return html.P("No request arrived in this time.", className="muted")
    rows = []
    others = sorted(str(reason) for reason in trends.finishes.keys() - FINISH_WORDS.keys())
    for reason in [*(reason for reason in FINISH_WORDS if reason in trends.finishes), *others]:
        href = path_with(REQUESTS_PATH, finish=reason or "running", **trends.span.query)
        name = FINISH_WORDS.get(reason, str(reason))
        number = trends.finishes[reason]
        tone = "bad" if reason == "error" else ""
        link = html.Th(dcc.Link(name, href=href), scope="row")
        rows.append(html.Tr([link, html.Td(count(number), className=tone), html.Td(percent(number / total))]))
    return html.Div([_table(("", "Requests", "Share"), rows), *_losses(trends)])


def _losses(trends: Trends) -> list[Any]:
    if not trends.gaps:
        return []
    text = f"The trace lost something {'once' if trends.gaps == 1 else f'{count(trends.gaps)} times'} in this time."
    return [html.P(text, className="bad")]


def _table(heads: Sequence[str], rows: Sequence[Any]) -> Any:
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in heads]))
    return html.Div(html.Table([head, html.Tbody(list(rows))], className="plain-table"), className="table-frame")


def span_words(trends: Trends) -> str:
    """How much is behind the charts."""
    plans = sum(share.plans for share in trends.kinds)
    minutes = round(trends.width.total_seconds() / 60)
    number, unit = (minutes, "minute") if minutes < 60 else (minutes // 60, "hour")
    width = f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{count(plans)} plans; a point is {width}. Drag across a chart to look closer."
