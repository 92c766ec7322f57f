"""What the policy page consists of: the form, who and why, the change before it is applied, and the history."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import ids
from dashboard.context import ControlRoom
from dashboard.formatting import coefficient_label, utc
from dashboard.grids import grid
from dashboard.markup import aria
from dashboard.pages.policy.history import HISTORY_COLUMNS, HISTORY_LIMIT, history_rows
from dashboard.pages.policy.values import MAX_ENTRY, Loaded, readable, show, show_with_hint
from scheduler.policy import COEFFICIENT_BY_NAME, COEFFICIENTS, PRESETS, Coefficient
from service.control.checks import MAX_ACTOR
from service.control.policy import PolicyVersion

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What work is worth", ("output_token_value", "terminal_value")),
    ("Fairness", ("token_fairness", "delivery_fairness", "adaptation_ms", "newcomer_memory")),
    ("Waiting", ("decode_age_price", "terminal_age_price")),
    ("Estimates and speculation", ("estimate_ttl_ns", "adaptive_verification_alpha", "prefill_chunking")),
)
PRESET_WORDS = {
    "balanced": "balanced: the defaults",
    "throughput": "throughput: tokens first, no delivery fairness or decode age price",
}


async def page(room: ControlRoom, _search: str = "") -> Any:
    """The page, loaded with the version in force. Raises StoreError."""
    current = await room.control.current()
    history = await room.control.history(HISTORY_LIMIT)
    return layout(current, history)


def layout(current: PolicyVersion, history: list[PolicyVersion]) -> Any:
    """The page for the version in force and its predecessors, newest first."""
    loaded = Loaded(current.version, current.config.as_dict())
    return html.Div(
        [
            dcc.Store(id=ids.POLICY_LOADED, data=loaded.as_json()),
            dcc.Store(id=ids.POLICY_ROLLBACK_CLICK),
            dcc.Store(id=ids.POLICY_ROLLBACK_TARGET),
            html.Div(
                [html.H1("Policy"), html.Span(in_force(current), id=ids.POLICY_VERSION, className="subtitle")],
                className="title-row",
            ),
            html.Div(
                [html.Div(_form(loaded), className="policy-form"), html.Aside(_sidebar(), className="policy-side")],
                className="policy-columns",
            ),
            html.H2("History"),
            grid(
                ids.POLICY_HISTORY,
                HISTORY_COLUMNS,
                history_rows(history, current.version),
                row_id="id",
                label="Policy versions, newest first",
                height_px=340 if len(history) > 8 else None,
            ),
            _rollback_dialog(),
        ]
    )


def in_force(version: PolicyVersion) -> str:
    """The line under the title."""
    preset = f", preset {version.preset}" if version.preset else ""
    return f"Version {version.version} is in force{preset}; by {version.actor}, {utc(version.applied_at)}"


def _form(loaded: Loaded) -> list[Any]:
    grouped = {name for _, names in GROUPS for name in names}
    others = tuple(c.name for c in COEFFICIENTS if c.name not in grouped)
    groups = [*GROUPS, *([("Other", others)] if others else [])]
    return [
        html.Section(
            [
                html.H2(heading),
                *(_coefficient(COEFFICIENT_BY_NAME[name], loaded) for name in names if name in COEFFICIENT_BY_NAME),
            ],
            className="card coefficient-group",
        )
        for heading, names in groups
    ]


def _coefficient(coefficient: Coefficient, loaded: Loaded) -> Any:
    value = loaded.values[coefficient.name]
    label = coefficient_label(coefficient.name)
    effect = coefficient.raising if coefficient.choices else f"Raising it: {_lower_first(coefficient.raising)}"
    return html.Div(
        [
            html.Div(
                [
                    html.Div([label, " ", html.Code(coefficient.name)], className="coefficient-name"),
                    html.P(coefficient.meaning),
                    html.P(effect, className="muted"),
                ],
                className="coefficient-words",
            ),
            html.Div(
                [
                    _field(coefficient, label, show(value)),
                    *_readable(coefficient, show(value)),
                    html.Div(
                        [
                            "in force ",
                            html.Span(
                                show_with_hint(coefficient, value), id=ids.current(coefficient.name), className="digits"
                            ),
                            " · default ",
                            html.Span(show_with_hint(coefficient, coefficient.default), className="digits"),
                        ],
                        className="coefficient-facts",
                    ),
                ],
                className="coefficient-entry",
            ),
        ],
        className="coefficient",
    )


def _field(coefficient: Coefficient, label: str, value: str) -> Any:
    name = label if coefficient.unit == "1" else f"{label}, {coefficient.unit}"
    if coefficient.choices:
        return dmc.Select(
            id=ids.coefficient(coefficient.name),
            data=list(coefficient.choices),
            value=value,
            allowDeselect=False,
            **aria(label=label),
        )
    return dmc.TextInput(
        id=ids.coefficient(coefficient.name),
        value=value,
        rightSection=html.Span("no unit" if coefficient.unit == "1" else coefficient.unit, className="unit"),
        rightSectionWidth=118,
        rightSectionPointerEvents="none",
        inputProps={"inputMode": "decimal", "maxLength": MAX_ENTRY, "autoComplete": "off"},
        className="number-field",
        **aria(label=name),
    )


def _readable(coefficient: Coefficient, entry: str) -> list[Any]:
    if coefficient.unit != "ns":
        return []
    text = readable(coefficient, entry)
    return [html.Div(text, id=ids.readable(coefficient.name), className="readable digits", role="status")]


def _lower_first(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _sidebar() -> list[Any]:
    presets = [{"value": name, "label": PRESET_WORDS.get(name, name)} for name in PRESETS]
    return [
        html.Section(
            [
                html.H2("Your change"),
                dmc.Select(
                    id=ids.POLICY_PRESET,
                    label="Start from a preset",
                    placeholder="none",
                    data=presets,
                    clearable=True,
                    comboboxProps={"width": "target"},
                ),
                html.Div(id=ids.POLICY_DIFF, className="diff", role="status", **aria(live="polite")),
                _who(ids.POLICY_ACTOR),
                _note(ids.POLICY_NOTE),
                html.Div(
                    [
                        dmc.Button("Apply", id=ids.POLICY_APPLY, disabled=True),
                        dmc.Button("Reset the form", id=ids.POLICY_RESET, variant="default"),
                    ],
                    className="buttons",
                ),
                html.Div(id=ids.POLICY_RESULT, role="alert"),
                html.Div(id=ids.POLICY_STALE, role="alert"),
            ],
            className="card",
        )
    ]


def _who(component_id: str) -> Any:
    """A field for the name, which assets/policy.js remembers in this browser."""
    return dmc.TextInput(id=component_id, label="Who", placeholder="your name", inputProps={"maxLength": MAX_ACTOR})


def _note(component_id: str) -> Any:
    words = "why, for whoever reads the history"
    return dmc.TextInput(id=component_id, label="Note", placeholder=words, inputProps={"maxLength": 300})


def _rollback_dialog() -> Any:
    return dmc.Modal(
        [
            html.Div(id=ids.POLICY_ROLLBACK_BODY),
            html.Div([_who(ids.POLICY_ROLLBACK_ACTOR), _note(ids.POLICY_ROLLBACK_NOTE)], className="dialog-fields"),
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
