"""The part of the page that tries a draft on recorded traffic: what is asked, how far it is, room for the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.formatting import coefficient_label, utc
from dashboard.markup import aria
from dashboard.pages.policy import ids as here
from dashboard.pages.policy.address import draft_text
from dashboard.pages.policy.sweep_values import EXAMPLE, MAX_VALUES
from dashboard.pages.policy.values import differences, show
from dashboard.routing import POLICY_PATH, path_with
from scheduler.policy import COEFFICIENTS
from service.control.preview.messages import PreviewStatus

DEFAULT_MINUTES = 10
TICK_MS = 700
MAX_ENTRY = 40
UNAVAILABLE = "This server has no simulator beside it, so that drafts cannot be tried on recorded traffic here."


def preview_panel(kept: Sequence[PreviewStatus] | None, *, preview_id: str | None, blocked: str) -> Any:
    """The section; `preview_id` is the one that the address names. `blocked`: why none may be started, or empty.

    `kept`: earlier previews, newest first; None where there are no previews at all.
    """
    head = html.H2("Try the draft on recorded traffic", id="preview")
    if kept is None:
        return html.Section([head, html.P(UNAVAILABLE, className="muted")], className="card preview")
    return html.Section(
        [
            dcc.Store(id=here.PREVIEW_ID, data=preview_id),
            dcc.Store(id=here.PREVIEW_SHOWN),
            dcc.Store(id=here.SWEEP_FIRST_SUGGESTED),
            dcc.Store(id=here.SWEEP_SECOND_SUGGESTED),
            dcc.Store(id=here.PREVIEW_ASK),
            dcc.Store(id=here.PREVIEW_BUSY, data=False),
            dcc.Interval(id=here.PREVIEW_TICK, interval=TICK_MS, disabled=preview_id is None),
            head,
            html.P(
                "Replays the requests that this server received through its scheduler in a simulator: once under the "
                "policy in force and once under the draft. Nothing is changed by it.",
                className="muted",
            ),
            _window(blocked),
            _sweep(),
            html.P(blocked, className="muted") if blocked else None,
            html.Div(id=here.PREVIEW_PROBLEM, role="alert", className="bad"),
            _progress(),
            html.Div(id=here.PREVIEW_RESULT),
            *_earlier(kept),
        ],
        className="card preview",
    )


def _earlier(kept: Sequence[PreviewStatus]) -> list[Any]:
    if not kept:
        return []
    items = [html.Li(dcc.Link(_what(status), href=_address(status))) for status in kept]
    return [html.Details([html.Summary("Earlier previews"), html.Ul(items)], className="earlier")]


def _what(status: PreviewStatus) -> str:
    changes = differences(status.request.running, status.request.draft)
    draft = ", ".join(f"{c.coefficient.name} {show(c.before)} → {show(c.after)}" for c in changes) or "no difference"
    return f"{utc(status.made_at)}, {status.by}: {draft} ({status.state})"


def _address(status: PreviewStatus) -> str:
    draft = draft_text(differences(status.request.running, status.request.draft))
    return path_with(POLICY_PATH, draft=draft or None, preview=status.id)


def _window(blocked: str) -> Any:
    return html.Div(
        [
            dmc.TextInput(
                id=here.PREVIEW_MINUTES,
                label="Minutes of traffic",
                value=str(DEFAULT_MINUTES),
                inputProps={"inputMode": "decimal", "maxLength": MAX_ENTRY, "autoComplete": "off"},
            ),
            dmc.TextInput(
                id=here.PREVIEW_UNTIL,
                label="up to (UTC)",
                placeholder="the newest plan",
                inputProps={"maxLength": MAX_ENTRY, "autoComplete": "off"},
            ),
            dmc.Button("Preview the draft", id=here.PREVIEW_START, disabled=bool(blocked)),
        ],
        className="preview-window",
    )


def _sweep() -> Any:
    names = [{"value": c.name, "label": coefficient_label(c.name)} for c in COEFFICIENTS]
    return html.Details(
        [
            html.Summary("Sweep one or two coefficients, to see the trade-off"),
            html.P(
                ["Every combination is replayed too. Values are a list or a range, such as ", html.Code(EXAMPLE), "."],
                className="muted",
            ),
            html.Div(
                [
                    *_axis(here.SWEEP_FIRST, here.SWEEP_FIRST_VALUES, "Coefficient", "Its values", names),
                    *_axis(here.SWEEP_SECOND, here.SWEEP_SECOND_VALUES, "Second coefficient", "Its values", names),
                ],
                className="sweep-axes",
            ),
        ],
        className="sweep-form",
    )


def _axis(name_id: str, values_id: str, label: str, values_label: str, names: list[dict[str, str]]) -> list[Any]:
    return [
        dmc.Select(
            id=name_id,
            label=label,
            data=names,
            placeholder="none",
            clearable=True,
            searchable=True,
            comboboxProps={"width": "target"},
        ),
        dmc.TextInput(
            id=values_id,
            label=values_label,
            inputProps={"maxLength": MAX_VALUES, "autoComplete": "off"},
            **aria(label=f"{label}: {values_label.lower()}"),
        ),
    ]


def _progress() -> Any:
    return html.Div(
        [
            html.Div(id=here.PREVIEW_MESSAGE, role="status", className="preview-message"),
            html.Div(
                [
                    dmc.Progress(id=here.PREVIEW_PROGRESS, value=0, size="md", **aria(label="Progress of the preview")),
                    dmc.Button("Cancel", id=here.PREVIEW_CANCEL, variant="default", size="compact-sm"),
                ],
                id=here.PREVIEW_BAR,
                className="preview-bar",
            ),
        ],
        id=here.PREVIEW_STATE,
        className="preview-progress",
        hidden=True,
    )
