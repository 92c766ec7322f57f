"""What the policy page consists of: the trial that runs, the form, the change, its preview, and the history."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import ids
from dashboard.context import ControlRoom
from dashboard.formatting import utc
from dashboard.grids import grid
from dashboard.markup import aria
from dashboard.pages.policy import ids as here
from dashboard.pages.policy.address import AddressDraft, draft_in, preview_in, trial_in
from dashboard.pages.policy.form import form
from dashboard.pages.policy.guard_form import guard_form
from dashboard.pages.policy.history import HISTORY_COLUMNS, HISTORY_LIMIT, history_rows
from dashboard.pages.policy.preview_panel import preview_panel
from dashboard.pages.policy.trials import TRIALS_LIMIT, fingerprint, trial_panel, trials
from dashboard.pages.policy.values import BUDGET, MAX_ENTRY, Loaded
from dashboard.pages.policy.who import read_only_reason, who_field
from scheduler.policy import PRESETS
from service.control.guards import Guard
from service.control.policy import PolicyVersion
from service.control.preview.messages import PreviewStatus

PRESET_WORDS = {
    "balanced": "balanced: the defaults",
    "throughput": "throughput: tokens first, no delivery fairness or decode age price",
    "interactive": "interactive: prompts by their waits, late gaps priced, no answer left out",
    BUDGET: "budget:N: a fixed number of tokens a step, to compare with",
}
USUAL_BUDGET = 512
LINKS = {False: "Try it on recorded traffic first", True: "See the preview below"}
TICK_MS = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """What the page is made of. `guards` and `previews`: None where there is no such control; newest first."""

    current: PolicyVersion
    history: Sequence[PolicyVersion]
    guards: Sequence[Guard] | None
    previews: Sequence[PreviewStatus] | None
    draft: AddressDraft
    preview_id: str | None
    trial: int | None
    now: dt.datetime


async def page(room: ControlRoom, search: str = "") -> Any:
    """The page, loaded with the version in force and the draft that the address gives. Raises StoreError."""
    shown = Shown(
        current=await room.control.current(),
        history=await room.control.history(HISTORY_LIMIT),
        guards=None if room.guards is None else await room.guards.history(TRIALS_LIMIT),
        previews=None if room.previews is None else await room.previews.kept(),
        draft=draft_in(search),
        preview_id=preview_in(search),
        trial=trial_in(search),
        now=dt.datetime.now(dt.UTC),
    )
    return layout(shown)


def layout(shown: Shown) -> Any:
    """The page of what was read."""
    loaded = Loaded(shown.current.version, shown.current.config.as_dict())
    blocked = read_only_reason()
    return html.Div(
        [
            *_state(loaded, fingerprint(shown.current, shown.guards or [], loaded.version)),
            html.Div(
                [html.H1("Policy"), html.Span(in_force(shown.current), id=ids.POLICY_VERSION, className="subtitle")],
                className="title-row",
            ),
            trial_panel(shown.guards or [], shown.now, blocked=blocked),
            html.Div(
                [
                    html.Div(form(loaded, shown.draft.entries), className="policy-form"),
                    html.Aside(_sidebar(shown, blocked), className="policy-side"),
                ],
                className="policy-columns",
            ),
            preview_panel(shown.previews, preview_id=shown.preview_id, blocked=blocked),
            html.H2("History"),
            grid(
                ids.POLICY_HISTORY,
                HISTORY_COLUMNS,
                history_rows(shown.history, shown.current.version, shown.guards or []),
                row_id="id",
                label="Policy versions, newest first",
                height_px=340 if len(shown.history) > 8 else None,
            ),
            html.Div(trials(shown.guards or [], shown.now, opened=shown.trial), id=here.TRIALS),
            _rollback_dialog(),
        ]
    )


def _state(loaded: Loaded, told: list[Any]) -> list[Any]:
    """What the browser keeps between callbacks."""
    return [
        dcc.Store(id=ids.POLICY_LOADED, data=loaded.as_json()),
        dcc.Store(id=ids.POLICY_ROLLBACK_CLICK),
        dcc.Store(id=ids.POLICY_ROLLBACK_TARGET),
        dcc.Store(id=here.DRAFT, data=""),
        dcc.Store(id=here.ADDRESS),
        dcc.Store(id=here.FILLED),
        dcc.Store(id=here.WATCH_SHOWN, data=told),
        dcc.Store(id=here.WATCH_ASK),
        dcc.Store(id=here.WATCH_BUSY, data=False),
        dcc.Interval(id=here.WATCH_TICK, interval=TICK_MS),
    ]


def in_force(version: PolicyVersion) -> str:
    """The line under the title."""
    preset = f", preset {version.preset}" if version.preset else ""
    return f"Version {version.version} is in force{preset}; by {version.actor}, {utc(version.applied_at)}"


def _sidebar(shown: Shown, blocked: str) -> list[Any]:
    presets = [{"value": name, "label": PRESET_WORDS.get(name, name)} for name in (*PRESETS, BUDGET)]
    problem = shown.draft.problem
    return [
        html.Section(
            [
                html.H2("Your change"),
                html.P(problem, className="bad") if problem else None,
                dmc.Select(
                    id=ids.POLICY_PRESET,
                    label="Start from a preset",
                    placeholder="none",
                    data=presets,
                    clearable=True,
                    comboboxProps={"width": "target"},
                ),
                html.Div(_budget(), id=here.BUDGET_PLACE, hidden=True),
                html.Div(id=ids.POLICY_DIFF, className="diff", role="status", **aria(live="polite")),
                html.P("The address of this page holds the draft: send it to show it.", className="muted draft-hint"),
                html.P(html.A(LINKS[shown.preview_id is not None], href="#preview"))
                if shown.previews is not None
                else None,
                who_field(ids.POLICY_ACTOR),
                _note(ids.POLICY_NOTE),
                html.Div(
                    [
                        dmc.Button("Apply", id=ids.POLICY_APPLY, disabled=True),
                        dmc.Button("Reset the form", id=ids.POLICY_RESET, variant="default"),
                    ],
                    className="buttons",
                ),
                html.P(blocked, className="muted") if blocked else None,
                guard_form(available=shown.guards is not None),
                html.Div(id=ids.POLICY_RESULT, role="alert"),
                html.Div(id=ids.POLICY_STALE, role="alert"),
            ],
            className="card",
        )
    ]


def _budget() -> Any:
    return dmc.TextInput(
        id=here.BUDGET,
        label="Tokens a step",
        value=str(USUAL_BUDGET),
        debounce=300,
        inputProps={"inputMode": "numeric", "maxLength": MAX_ENTRY, "autoComplete": "off"},
    )


def _note(component_id: str) -> Any:
    words = "why, for whoever reads the history"
    return dmc.TextInput(id=component_id, label="Note", placeholder=words, inputProps={"maxLength": 300})


def _rollback_dialog() -> Any:
    return dmc.Modal(
        [
            html.Div(id=ids.POLICY_ROLLBACK_BODY),
            html.Div(
                [who_field(ids.POLICY_ROLLBACK_ACTOR), _note(ids.POLICY_ROLLBACK_NOTE)], className="dialog-fields"
            ),
            html.Div(
                [
                    dmc.Button("Go back", id=ids.POLICY_ROLLBACK_CONFIRM, disabled=True),
                    dmc.Button("Cancel", id=ids.POLICY_ROLLBACK_CANCEL, variant="default"),
                ],
                className="buttons",
            ),
        ],
        id=ids.POLICY_ROLLBACK_DIALOG,
        title="Go back to an earlier version",
        opened=False,
        size="lg",
    )
