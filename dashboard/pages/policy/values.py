"""Between a form's text and coefficient values. Pure, so that every odd entry is a unit test.

The form's fields are text fields with a numeric keyboard: browser number fields drop characters silently, so that
`1e5` becomes `15`. Here whatever was typed arrives and is judged by the policy's own rules.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from dashboard import checks
from dashboard.errors import RefusedInput
from dashboard.formatting import milliseconds
from scheduler.errors import InvalidPolicy
from scheduler.policy import COEFFICIENT_BY_NAME, COEFFICIENTS, PRESETS, Coefficient, CoefficientValue, PolicyConfig

MAX_ENTRY = 64
BUDGET = "budget"
"""The preset `budget:N` as the page offers it; N is what stands in the field of `token_budget`."""
_INTEGER = re.compile(r"[+-]?\d{1,40}", flags=re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d{1,40}(\.\d{0,40})?|\.\d{1,40})([eE][+-]?\d{1,4})?", flags=re.ASCII)

Values = dict[str, CoefficientValue]


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """What the form was loaded with: the version that a change is based on, and its values."""

    version: int
    values: Values

    def as_json(self, **extra: Any) -> dict[str, Any]:
        return {"version": self.version, "values": dict(self.values), **extra}


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One coefficient's change."""

    coefficient: Coefficient
    before: CoefficientValue
    after: CoefficientValue


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A form read against what it was loaded with. `problems` is empty or says which entries cannot be used.

    `config`: the policy that the form describes; None where an entry cannot be used.
    """

    preset: str | None
    changes: list[Change]
    problems: dict[str, str]
    to_send: Values
    config: PolicyConfig | None = None


def read_loaded(value: object) -> Loaded:
    """The browser's copy of what the form was loaded with. Raises RefusedInput."""
    fields = checks.mapping("loaded", value)
    values = checks.mapping("loaded.values", fields.get("values"))
    version = checks.whole_number("loaded.version", fields.get("version"))
    try:
        config = PolicyConfig().merged(values)
    except InvalidPolicy as error:
        raise RefusedInput("loaded.values", str(error)) from error
    return Loaded(version, config.as_dict())


def read_entries(ids: object, values: object) -> dict[str, str]:
    """Coefficient name to what stands in its field, from a pattern-matching callback. Raises RefusedInput."""
    if not isinstance(ids, list) or not isinstance(values, list) or len(ids) != len(values):
        raise RefusedInput("coefficients", "must be one value per field")
    entries = {}
    for field, value in zip(ids, values, strict=True):
        name = checks.choice("coefficient", checks.mapping("coefficient id", field).get("name"), COEFFICIENT_BY_NAME)
        entries[name] = checks.text(name, value, MAX_ENTRY)
    if set(entries) != set(COEFFICIENT_BY_NAME):
        raise RefusedInput("coefficients", "must be all of " + ", ".join(COEFFICIENT_BY_NAME))
    return entries


def parse_entry(coefficient: Coefficient, entry: str) -> object:
    """The value that an entry stands for; text that is no number stays text, for the policy's rules to refuse."""
    if coefficient.choices:
        return entry
    if _INTEGER.fullmatch(entry):
        return int(entry)
    return float(entry) if _DECIMAL.fullmatch(entry) else entry


def show(value: CoefficientValue) -> str:
    """A value as it stands in a field; reading it gives the same value again."""
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def show_with_hint(coefficient: Coefficient, value: CoefficientValue) -> str:
    """A value for reading only: nanoseconds are followed by the time in a unit that people know."""
    if coefficient.unit == "ns" and not isinstance(value, str):
        return f"{show(value)} ({in_seconds(value)})"
    return show(value)


def in_seconds(value_ns: float) -> str:
    """Nanoseconds in a unit that people know, as exactly as they were given: `30 s`, `1.5 s`, `20 ms`."""
    return f"{value_ns / 1e9:,.10g} s" if abs(value_ns) >= 1e9 else milliseconds(value_ns / 1e6)


def readable(coefficient: Coefficient, entry: str) -> str:
    """What the entry of a nanosecond field means, empty where it is no usable value."""
    value = parse_entry(coefficient, entry)
    if coefficient.problem(value) is not None or not isinstance(value, int | float):
        return ""
    return f"= {in_seconds(value)}"


def read_draft(loaded: Loaded, preset: object, entries: Mapping[str, str]) -> Draft:
    """What the form would change. Raises RefusedInput for a preset that is not offered."""
    chosen = None if preset is None else checks.choice("preset", preset, (*PRESETS, BUDGET))
    values = {c.name: parse_entry(c, entries[c.name]) for c in COEFFICIENTS}
    try:
        drafted = PolicyConfig().merged(values)
    except InvalidPolicy as error:
        return Draft(chosen, [], error.problems, {})
    config = drafted.as_dict()
    changes = [
        Change(c, loaded.values[c.name], config[c.name])
        for c in COEFFICIENTS
        if config[c.name] != loaded.values[c.name]
    ]
    if chosen == BUDGET:
        chosen = budget_preset(str(drafted.token_budget))
    base = loaded.values if chosen is None else PolicyConfig.preset(chosen).as_dict()
    to_send = {name: value for name, value in config.items() if value != base[name]}
    return Draft(chosen, changes, {}, to_send, drafted)


def budget_preset(entry: str) -> str | None:
    """`budget:N` for what was typed as N; None where no such preset can be."""
    name = f"{BUDGET}:{entry}"
    try:
        PolicyConfig.preset(name)
    except InvalidPolicy:
        return None
    return name


def differences(before: Mapping[str, CoefficientValue], after: Mapping[str, CoefficientValue]) -> list[Change]:
    """The coefficients whose values differ, in the order of COEFFICIENTS."""
    return [Change(c, before[c.name], after[c.name]) for c in COEFFICIENTS if before[c.name] != after[c.name]]


def all_text(values: Mapping[str, CoefficientValue]) -> str:
    """Every coefficient in the form of an address's draft, which assets/policy.js puts into the form."""
    return ",".join(f"{c.name}:{show(values[c.name])}" for c in COEFFICIENTS)


def rebased(loaded: Loaded, entries: Mapping[str, str], current: Loaded) -> dict[str, str]:
    """The form on top of a newer version: fields that were edited keep their entries, others follow `current`."""
    return {
        c.name: entries[c.name] if entries[c.name] != show(loaded.values[c.name]) else show(current.values[c.name])
        for c in COEFFICIENTS
    }
