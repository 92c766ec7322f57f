"""What a guard is asked for, as a form has it: `110 %` of the hour before, or a value such as `800 ms`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import dash_mantine_components as dmc
from dash import html

from dashboard import checks
from dashboard.errors import RefusedInput
from dashboard.markup import aria
from dashboard.pages.policy import ids as here
from service.control.guard_terms import MOST_SAMPLES
from service.control.guards import DEFAULT_MINUTES, LEAST_MINUTES, LIMIT_NAMES, MOST_MINUTES, GuardLimits, Limit

MAX_ENTRY = 40
LABELS: Mapping[str, str] = {
    "first_token_p99": "First token p99, at most",
    "inter_token_p99": "Inter-token p99, at most",
    "throughput": "Throughput, at least",
}
ABSOLUTE_UNITS: Mapping[str, str] = {"first_token_p99": "ms", "inter_token_p99": "ms", "throughput": "tokens/s"}
_ENTRY = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(%|ms|s|tokens/s)", flags=re.ASCII)
_NUMBER = re.compile(r"\d{1,7}(\.\d{1,6})?", flags=re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class GuardDraft:
    """A guard as the form asks for it. `problems`: by limit name, or `minutes`; empty when it can be used."""

    minutes: float
    limits: GuardLimits
    problems: dict[str, str]


def default_entry(name: str) -> str:
    """What a limit's field says at first: `110 %`."""
    limit = getattr(GuardLimits(), name)
    return f"{limit.ratio * 100:g} %"


def default_samples(name: str) -> str:
    """How many samples a limit needs at first."""
    return str(getattr(GuardLimits(), name).samples)


def read_limit(name: str, entry: str, samples: str) -> Limit | str | None:
    """The limit that a field asks for, None for an empty one, or what is wrong with it."""
    if not entry:
        return None
    unit = ABSOLUTE_UNITS[name]
    match = _ENTRY.fullmatch(entry)
    if match is None or (match[2] not in ("%", unit) and not (match[2] == "s" and unit == "ms")):
        return f"say it like “{default_entry(name)}” of the hour before, or “500 {unit}”"
    value = float(match[1])
    if value <= 0:
        return "must be above 0"
    if not samples.isascii() or not samples.isdigit() or not 1 <= int(samples) <= MOST_SAMPLES:
        return f"needs a whole number of samples, 1 to {MOST_SAMPLES:,}"
    if match[2] == "%":
        return Limit(ratio=value / 100, samples=int(samples))
    return Limit(absolute=value * 1e3 if match[2] == "s" else value, samples=int(samples))


def read_guard(minutes: object, entries: Mapping[str, str], samples: Mapping[str, str]) -> GuardDraft:
    """The guard that the form asks for. Raises RefusedInput for what no form sends."""
    problems: dict[str, str] = {}
    length = checks.text("minutes", minutes, MAX_ENTRY)
    asked = float(length) if _NUMBER.fullmatch(length) else 0.0
    if not LEAST_MINUTES <= asked <= MOST_MINUTES:
        problems["minutes"] = f"must be a number of minutes from {LEAST_MINUTES:g} to {MOST_MINUTES:g}"
    limits: dict[str, Limit | None] = {}
    for name in LIMIT_NAMES:
        found = read_limit(name, entries[name], samples[name])
        if isinstance(found, str):
            problems[name] = found
        limits[name] = None if isinstance(found, str) else found
    if not problems and not any(limits.values()):
        problems["minutes"] = "a guard needs at least one limit"
    return GuardDraft(asked, GuardLimits(**limits), problems)


def read_fields(fields: object, values: object) -> dict[str, str]:
    """Limit name to what stands in its field, from a pattern-matching callback. Raises RefusedInput."""
    if not isinstance(fields, list) or not isinstance(values, list) or len(fields) != len(values):
        raise RefusedInput("limits", "must be one value per field")
    found = {}
    for field, value in zip(fields, values, strict=True):
        name = checks.choice("limit", checks.mapping("limit id", field).get("name"), LIMIT_NAMES)
        found[name] = checks.text(name, value, MAX_ENTRY)
    if set(found) != set(LIMIT_NAMES):
        raise RefusedInput("limits", "must be all of " + ", ".join(LIMIT_NAMES))
    return found


def guard_form(*, available: bool) -> Any:
    """The fields, closed at first."""
    if not available:
        return html.P("Guarded changes are not available on this server.", className="muted")
    return html.Details(
        [
            html.Summary("Apply on trial, with a way back"),
            html.P(
                "The change is watched against the hour before. It is taken back by itself when a limit breaks, or "
                "when too little happened to judge it.",
                className="muted",
            ),
            dmc.TextInput(
                id=here.GUARD_MINUTES,
                label="Minutes on trial",
                value=f"{DEFAULT_MINUTES:g}",
                inputProps={"inputMode": "decimal", "maxLength": MAX_ENTRY},
            ),
            html.Div([part for name in LIMIT_NAMES for part in _limit(name)], className="guard-limits"),
            dmc.Button("Apply on trial", id=here.GUARD_APPLY, variant="light", disabled=True, fullWidth=True),
        ],
        className="guard-form",
    )


def _limit(name: str) -> list[Any]:
    samples = f"{LABELS[name].split(',')[0]}, values needed"
    return [
        dmc.TextInput(
            id=here.guard_limit(name),
            label=LABELS[name],
            value=default_entry(name),
            placeholder="no limit",
            inputProps={"maxLength": MAX_ENTRY, "autoComplete": "off"},
        ),
        dmc.TextInput(
            id=here.guard_samples(name),
            label="values needed",
            value=default_samples(name),
            inputProps={"inputMode": "numeric", "maxLength": MAX_ENTRY, "autoComplete": "off"},
            **aria(label=samples),
        ),
    ]
