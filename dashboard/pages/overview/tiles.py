"""This moment in tiles, and the sentence above them: is it healthy, and what to look at if it is not."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from dashboard.formatting import age, count, milliseconds, percent, quantity, words
from dashboard.markup import aria
from dashboard.queries.last_minute import MINUTE
from dashboard.queries.latencies import Percentiles
from dashboard.queries.overview import Now
from dashboard.routing import POLICY_PATH, REQUESTS_PATH, TIMELINE_PATH, path_with, request_path

LONG_WAIT = dt.timedelta(seconds=10)
RECENT_GAP = dt.timedelta(hours=1)
AROUND = dt.timedelta(minutes=2)


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """One fact. `bad` marks what an operator should look at; `href` is where it is looked at."""

    heading: str
    value: str
    detail: str
    href: str | None = None
    bad: bool = False

    def render(self) -> Any:
        """A term and its description."""
        value = self.value if self.href is None else dcc.Link(self.value, href=self.href)
        return html.Div(
            [
                html.Dt(self.heading),
                html.Dd(value, className="tile-value bad" if self.bad else "tile-value"),
                html.Dd(self.detail, className="tile-detail"),
            ],
            className="tile",
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Remark:
    """Something to look at, and where."""

    text: str
    link: tuple[str, str] | None = None


def tiles(now: Now) -> list[Tile]:
    """The moment's facts, most asked for first."""
    minute = path_with(TIMELINE_PATH, last="5m")
    return [
        Tile("Running", count(now.running), _run_words(now), path_with(REQUESTS_PATH, finish="running")),
        _waiting(now),
        _latency("First token, p50", now.first_token, path_with(REQUESTS_PATH, order="first", last="5m")),
        _latency("Time per token, p50", now.between, None),
        Tile("Output tokens", f"{quantity(now.tokens / MINUTE.total_seconds())}/s", _plans_words(now), minute),
        _busy(now, minute),
        _policy(now),
        _trace(now),
    ]


def remarks(now: Now) -> list[Remark]:
    """What is wrong now; nothing when all is well."""
    run, found = now.run, []
    if run is None:
        return [Remark("No engine has run on this store yet.")]
    if run["ended_at"] is not None:
        ended = age((now.at - run["ended_at"]).total_seconds() * 1e3)
        why = run["end_reason"] or "it did not say why"
        found.append(Remark(f"The engine does not run: its last run ended {ended} ago ({why})."))
    oldest = now.waiting.oldest_at
    if oldest is not None and now.at - oldest > LONG_WAIT:
        waited = age((now.at - oldest).total_seconds() * 1e3)
        text = f"{_requests(now.waiting.count)} for a first graph, the oldest for {waited}."
        link = request_path(str(run["run_id"]), str(now.waiting.oldest_id))
        found.append(Remark(text, ("Why?", link)))
    if now.newest_gap is not None and now.at - now.newest_gap["noticed_at"] < RECENT_GAP:
        ago = age((now.at - now.newest_gap["noticed_at"]).total_seconds() * 1e3)
        found.append(Remark(f"The trace lost something {ago} ago: {now.newest_gap['reason']}."))
    return found


def verdict(now: Now) -> Any:
    """The sentence above the tiles."""
    found = remarks(now)
    if not found:
        text = "Healthy: the engine runs, nobody waits long, and the trace is whole."
        return html.P([html.Span(className="lamp good", **aria(hidden="true")), text], className="verdict")
    return html.Div([_remark(remark) for remark in found])


def fingerprint(found: Sequence[Tile], now: Now) -> list[str]:
    """What a browser shows, to answer nothing when it would not change."""
    return [
        *(f"{tile.value}|{tile.detail}|{tile.bad}" for tile in found),
        *(remark.text for remark in remarks(now)),
    ]


def _remark(remark: Remark) -> Any:
    link: list[Any] = [] if remark.link is None else [" ", dcc.Link(remark.link[0], href=remark.link[1])]
    lamp = html.Span(className="lamp poor", **aria(hidden="true"))
    return html.P([lamp, html.Span([remark.text, *link])], className="verdict")


def _requests(number: int) -> str:
    return f"{count(number)} request{' waits' if number == 1 else 's wait'}"


def _run_words(now: Now) -> str:
    if now.run is None:
        return "no engine yet"
    if now.run["ended_at"] is not None:
        return "the engine has ended"
    return f"since {now.run['started_at']:%b %-d, %H:%M} UTC"


def _waiting(now: Now) -> Tile:
    waiting = now.waiting
    if waiting.oldest_at is None:
        return Tile("Waiting", "0", "every request is in work")
    waited = now.at - waiting.oldest_at
    detail = f"oldest for {age(max(0.0, waited.total_seconds() * 1e3))}"
    return Tile("Waiting", count(waiting.count), detail, path_with(REQUESTS_PATH, finish="running"), waited > LONG_WAIT)


def _latency(heading: str, found: Percentiles, href: str | None) -> Tile:
    if not found.count:
        return Tile(heading, "–", "no request")
    detail = f"p99 {milliseconds(found.p99)} · {count(found.count)} request{'' if found.count == 1 else 's'}"
    return Tile(heading, milliseconds(found.p50), detail, href)


def _plans_words(now: Now) -> str:
    return f"{count(now.plans)} plan{'' if now.plans == 1 else 's'}"


def _busy(now: Now, href: str) -> Tile:
    whole_ms = MINUTE.total_seconds() * 1e3
    largest = sorted(now.busy_ms.items(), key=lambda entry: -entry[1])[:2]
    parts = [f"{words(kind)} {percent(busy / whole_ms)}" for kind, busy in largest if busy]
    share = min(1.0, sum(now.busy_ms.values()) / whole_ms)
    return Tile("Device busy", percent(share), ", ".join(parts) or "idle", href)


def _policy(now: Now) -> Tile:
    if now.policy is None:
        return Tile("Policy", "none yet", "the first engine makes one", POLICY_PATH)
    note = f": {now.policy['note']}" if now.policy["note"] else ""
    return Tile("Policy", f"version {now.policy['version']}", f"by {now.policy['actor']}{note}", POLICY_PATH)


def _trace(now: Now) -> Tile:
    if now.newest_gap is None:
        last = "nothing recorded yet"
        if now.last_plan_at is not None:
            last = f"last plan {age(max(0.0, (now.at - now.last_plan_at).total_seconds() * 1e3))} ago"
        return Tile("Trace", "whole", last)
    ago = now.at - now.newest_gap["noticed_at"]
    detail = f"the last {age(ago.total_seconds() * 1e3)} ago: {now.newest_gap['reason']}"
    around = [now.newest_gap["noticed_at"] + side * AROUND for side in (-1, 1)]
    href = path_with(TIMELINE_PATH, since=around[0].isoformat(), until=around[1].isoformat())
    return Tile("Trace", f"{count(now.gaps)} gap{'' if now.gaps == 1 else 's'}", detail, href, ago < RECENT_GAP)
