"""The strip above the timeline: what runs, under which policy, and whether the trace is whole."""

from __future__ import annotations

import dataclasses
from typing import Any

from dash import dcc, html

from dashboard.data import Strip
from dashboard.formatting import count
from dashboard.routing import POLICY_PATH


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One fact of the strip. `tone` is "" or "bad"; `href` makes the value a link."""

    heading: str
    value: str
    detail: str = ""
    tone: str = ""
    href: str | None = None

    def render(self) -> Any:
        """A definition-list pair."""
        value = self.value if self.href is None else dcc.Link(self.value, href=self.href)
        return html.Div(
            [
                html.Div(self.heading, className="strip-heading"),
                html.Div(value, className=f"strip-value {self.tone}".strip()),
                html.Div(self.detail, className="strip-detail", title=self.detail),
            ],
            className="strip-entry",
        )


def strip(found: Strip) -> list[Entry]:
    """The strip's entries, from left to right."""
    run = found.health.newest_run
    version = "none yet" if found.policy_version is None else f"version {found.policy_version}"
    policy = Entry("Policy", version, href=POLICY_PATH)
    if run is None:
        return [Entry("Engine", "never started", "no run is recorded"), policy]
    ended = run["ended_at"] is not None
    return [
        Entry("Model", run["model"], f"on {run['device']}"),
        Entry(
            "Engine run",
            f"ended: {run['end_reason'] or 'unknown'}" if ended else "running",
            f"since {run['started_at']:%b %-d, %H:%M} UTC · {run['run_id']}",
            "bad" if ended else "",
        ),
        policy,
        Entry("Requests", f"{count(found.running)} running"),
        Entry("Output", f"{count(found.minute_tokens)} tokens", "in the last minute"),
        _trace(found),
    ]


def _trace(found: Strip) -> Entry:
    """Whether records are missing. How far the recorder lags is in the metrics."""
    gaps = found.health.gap_count
    if gaps:
        return Entry("Trace", f"{count(gaps)} gap{'s' if gaps > 1 else ''}", found.health.gaps[0]["reason"], "bad")
    return Entry("Trace", "complete", "no gaps")
