"""The trial that runs, with its two ways out, and the decided ones with their evidence."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.formatting import utc
from dashboard.guard_card import STATES, evidence, guard_words, headline
from dashboard.pages.policy import ids as here
from dashboard.pages.policy.who import who_field
from service.control.guards import Guard
from service.control.policy import PolicyVersion

TRIALS_LIMIT = 20


def fingerprint(current: PolicyVersion, guards: Sequence[Guard], loaded_version: int) -> list[Any]:
    """Changes when the page should show another history, other trials, or that the form is behind."""
    return [current.version, current.version != loaded_version, *([guard.version, guard.state] for guard in guards)]


def watching(guards: Sequence[Guard]) -> Guard | None:
    """The one that runs, or None."""
    return next((guard for guard in guards if guard.state == "watching"), None)


def trial_panel(guards: Sequence[Guard], now: dt.datetime, *, blocked: str) -> Any:
    """The card of the running trial, hidden while none runs. Its buttons stay while the figures change."""
    found = watching(guards)
    return html.Section(
        [
            dcc.Store(id=here.GUARD_CHOICE),
            html.Div(shown(found, now), id=here.GUARD_SHOWN),
            html.Div(
                [
                    dmc.Button("Roll back now", id=here.GUARD_BACK, color="red", disabled=bool(blocked)),
                    dmc.Button("Keep now", id=here.GUARD_KEEP, variant="default", disabled=bool(blocked)),
                    html.Span(blocked, className="muted"),
                ],
                className="buttons",
            ),
            _dialog(),
        ],
        id=here.GUARD_PANEL,
        className="card guard",
        hidden=found is None,
    )


def shown(guard: Guard | None, now: dt.datetime) -> list[Any]:
    """What changes in the card from second to second."""
    if guard is None:
        return []
    return [html.H2(headline(guard)), html.P(guard_words(guard, now)), *evidence(guard)]


def _dialog() -> Any:
    return dmc.Modal(
        [
            html.P(id=here.GUARD_WORDS),
            html.Div(who_field(here.GUARD_ACTOR), className="dialog-fields"),
            html.Div(
                [
                    dmc.Button("Yes", id=here.GUARD_CONFIRM),
                    dmc.Button("Let the trial go on", id=here.GUARD_CANCEL, variant="default"),
                ],
                className="buttons",
            ),
        ],
        id=here.GUARD_DIALOG,
        title="End the trial",
        opened=False,
    )


def ending_words(guard: Guard, *, back: bool) -> str:
    """What ending it now does."""
    if back:
        return (
            f"Makes a new version with version {guard.parent}'s values at once, and ends the trial of version "
            f"{guard.version}."
        )
    return f"Version {guard.version} stays in force, and nothing takes it back by itself any more."


def trials(guards: Sequence[Guard], now: dt.datetime, *, opened: int | None = None) -> list[Any]:
    """The decided trials, newest first; the one of version `opened` shows its evidence at once."""
    decided = [guard for guard in guards if guard.state != "watching"]
    if not decided:
        return []
    return [html.H2("Trials"), *(_trial(guard, now, opened=guard.version == opened) for guard in decided)]


def _trial(guard: Guard, now: dt.datetime, *, opened: bool) -> Any:
    summary = f"Version {guard.version}: {STATES[guard.state]}, {utc(guard.decided_at)}"
    return html.Details(
        [html.Summary(summary), html.P(guard_words(guard, now)), *evidence(guard)],
        id=f"trial-{guard.version}",
        className="card trial",
        open=opened,
    )
