"""What a change, or its refusal, looks like. Plain components; no callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import ids
from dashboard.formatting import utc
from dashboard.pages.policy.values import Change, Draft, show_with_hint
from dashboard.routing import timeline_path
from scheduler.policy import COEFFICIENT_BY_NAME
from service.control.fit import misfit
from service.control.policy import PolicyVersion


def diff_table(changes: Sequence[Change], before: str, after: str) -> Any:
    """Coefficient, value before, value after."""
    head = html.Tr([html.Th("Coefficient", scope="col"), html.Th(before, scope="col"), html.Th(after, scope="col")])
    rows = [
        html.Tr(
            [
                html.Th(html.Code(c.coefficient.name), scope="row"),
                html.Td(show_with_hint(c.coefficient, c.before)),
                html.Td(show_with_hint(c.coefficient, c.after), className="after"),
            ]
        )
        for c in changes
    ]
    return html.Table([html.Thead(head), html.Tbody(rows)], className="diff-table")


def draft_preview(draft: Draft, mixed_prefill: bool) -> Any:
    """The change before it is applied, and what the policy would lack on a server with or without mixed graphs."""
    if draft.problems:
        count = len(draft.problems)
        return html.P(f"{count} entr{'y' if count == 1 else 'ies'} cannot be used; see the fields.", className="bad")
    if not draft.changes:
        return html.P("No difference from the version in force.", className="muted")
    table = diff_table(draft.changes, "in force", "new")
    lacking = None if draft.config is None else misfit(draft.config, mixed_prefill=mixed_prefill)
    if lacking is None:
        return table
    return html.Div([table, html.P(f"{lacking[:1].upper()}{lacking[1:]}.", className="bad")])


def applied(version: PolicyVersion, verb: str = "applied") -> Any:
    """Success."""
    link = dcc.Link(f"Plans chosen under version {version.version}", href=timeline_path(version.version))
    return dmc.Alert(
        [html.P("The engine uses it from its next plan on."), link],
        title=f"Version {version.version} {verb}",
        color="teal",
    )


def kept(version: PolicyVersion) -> Any:
    """A trial was ended by hand."""
    return dmc.Alert(f"The trial is over; version {version.version} stays in force.", title="Kept", color="teal")


def unchanged(version: PolicyVersion) -> Any:
    """Nothing differed, so no version was made."""
    return dmc.Alert(f"Version {version.version} has these values already; nothing was changed.", color="gray")


def refused(title: str, text: str) -> Any:
    """Nothing was changed, and why."""
    return dmc.Alert(text, title=title, color="red")


def invalid(problems: Mapping[str, str]) -> Any:
    """The policy's own objections, by coefficient."""
    items = [html.Li([html.Code(name), " ", why]) for name, why in problems.items()]
    known = all(name in COEFFICIENT_BY_NAME for name in problems)
    return dmc.Alert(
        html.Ul(items),
        title="Nothing was changed: " + ("these values cannot be used" if known else "refused"),
        color="red",
    )


def stale(current: PolicyVersion, changes: Sequence[Change], loaded_version: int) -> Any:
    """Somebody else changed the policy meanwhile: their change, and a way on."""
    note = f' Their note: "{current.note}".' if current.note else ""
    text = (
        f"While you were editing version {loaded_version}, {current.actor} applied version {current.version} "
        f"({utc(current.applied_at)}).{note} Nothing of yours was applied and nothing was overwritten."
    )
    return dmc.Alert(
        [
            html.P(text),
            diff_table(changes, f"version {loaded_version}", f"version {current.version}"),
            dmc.Button(f"Continue on version {current.version}, keeping my edits", id=ids.POLICY_REBASE, size="xs"),
        ],
        title="Somebody else changed the policy",
        color="yellow",
    )


def rollback_preview(version: PolicyVersion, changes: Sequence[Change], loaded_version: int) -> list[Any]:
    """What going back would change."""
    words = (
        f"This makes a new version with the values of version {version.version} "
        f"(by {version.actor}, {utc(version.created_at)})."
    )
    if not changes:
        return [html.P(words), html.P("The values are the same as in force; nothing will change.", className="muted")]
    return [html.P(words), diff_table(changes, f"version {loaded_version}, in force", f"version {version.version}")]
