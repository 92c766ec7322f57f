"""The form: each coefficient with its meaning, unit, default, allowed values and the effect of raising it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html

from dashboard import ids
from dashboard.formatting import coefficient_label
from dashboard.markup import aria
from dashboard.pages.policy.values import MAX_ENTRY, Loaded, readable, show, show_with_hint
from scheduler.policy import COEFFICIENT_BY_NAME, COEFFICIENTS, Coefficient

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What work is worth", ("output_token_value", "terminal_value")),
    ("Fairness", ("token_fairness", "delivery_fairness", "adaptation_ms", "newcomer_memory")),
    ("Waiting", ("decode_age_price", "terminal_age_price")),
    (
        "Estimates and speculation",
        ("estimate_ttl_ns", "acceptance_model", "adaptive_verification_alpha", "prefill_chunking"),
    ),
)
FURTHER_GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Prompts and gaps",
        "Prompts that wait for their end and gaps between outputs that are late, priced by themselves; off unless set.",
        ("prompt_wait_price", "prompt_rank_age_ms", "decode_late_price", "decode_gap_weight", "decode_cadence"),
    ),
    (
        "Comparison",
        "Plans as servers with a fixed token budget do, to see the difference. Start from the preset balanced: other "
        "prices that are set still choose among what the budget leaves.",
        ("token_budget",),
    ),
)
"""Groups with what they are about; each is closed while it is as it comes."""


def form(loaded: Loaded, entries: Mapping[str, str]) -> list[Any]:
    """Every coefficient; `entries` are those that an address proposes instead of the values in force."""
    grouped = {name for *_, names in (*GROUPS, *FURTHER_GROUPS) for name in names}
    others = tuple(c.name for c in COEFFICIENTS if c.name not in grouped)
    groups = [*GROUPS, *([("Other", others)] if others else [])]
    return [
        *(
            html.Section([html.H2(heading), *_coefficients(names, loaded, entries)], className="card coefficient-group")
            for heading, names in groups
        ),
        *(_further(heading, about, names, loaded, entries) for heading, about, names in FURTHER_GROUPS),
    ]


def _further(heading: str, about: str, names: Sequence[str], loaded: Loaded, entries: Mapping[str, str]) -> Any:
    used = any(name in entries or loaded.values[name] != COEFFICIENT_BY_NAME[name].default for name in names)
    summary = html.Summary([html.H2(heading), html.P(about, className="muted")])
    return html.Details(
        [summary, *_coefficients(names, loaded, entries)], open=used, className="card coefficient-group further-group"
    )


def _coefficients(names: Sequence[str], loaded: Loaded, entries: Mapping[str, str]) -> list[Any]:
    return [_coefficient(COEFFICIENT_BY_NAME[name], loaded, entries.get(name)) for name in names]


def _coefficient(coefficient: Coefficient, loaded: Loaded, proposed: str | None) -> Any:
    value = loaded.values[coefficient.name]
    entry = show(value) if proposed is None else proposed
    label = coefficient_label(coefficient.name)
    return html.Div(
        [
            html.Div(_words(coefficient, label), className="coefficient-words"),
            html.Div(
                [
                    _field(coefficient, label, entry),
                    *_readable(coefficient, entry),
                    _facts(coefficient, show_with_hint(coefficient, value)),
                ],
                className="coefficient-entry",
            ),
        ],
        className="coefficient",
    )


def _words(coefficient: Coefficient, label: str) -> list[Any]:
    if coefficient.choices:
        effect: Any = coefficient.raising
    else:
        effect = [html.Strong("Raising it: "), coefficient.raising[:1].lower() + coefficient.raising[1:]]
    return [
        html.Div([label, " ", html.Code(coefficient.name)], className="coefficient-name"),
        html.P(coefficient.meaning),
        html.P(effect, className="muted"),
    ]


def _facts(coefficient: Coefficient, in_force: str) -> Any:
    facts = (
        ("in force", html.Span(in_force, id=ids.current(coefficient.name))),
        ("default", show_with_hint(coefficient, coefficient.default)),
        ("allowed", coefficient.allowed.removeprefix("one of ").removeprefix("a finite number").lstrip(", ")),
    )
    return html.Dl(
        [html.Div([html.Dt(name), html.Dd(words, className="digits")]) for name, words in facts],
        className="coefficient-facts",
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
