"""What changes between policy versions, as the policy commands show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.policy import COEFFICIENTS

Version = Mapping[str, Any]
"""A policy version as the control API sends it."""

Changes = dict[str, dict[str, Any]]
"""{"before", "after"} of each coefficient that differs."""


def changes(before: Version, after: Version) -> Changes:
    """From one version to another, in the order of the coefficients."""
    old, new = before["coefficients"], after["coefficients"]
    names = [*(c.name for c in COEFFICIENTS), *new]
    return {n: {"before": old.get(n), "after": new.get(n)} for n in names if n in new and old.get(n) != new.get(n)}


def change_lines(found: Changes) -> list[str]:
    """One line each, with the unit, names and values below each other."""
    units = {c.name: "" if c.unit == "1" or c.choices else f" {c.unit}" for c in COEFFICIENTS}
    width = max(map(len, found), default=0)
    return [
        f"  {name:<{width}}  {values['before']} -> {values['after']}{units.get(name, '')}"
        for name, values in found.items()
    ]


def with_changes(versions: Sequence[Version], known: Mapping[int, Version]) -> list[dict[str, Any]]:
    """Each version with "changed", against its parent; None for the first one and where the parent is not known."""
    found = []
    for version in versions:
        parent = known.get(version.get("parent_version") or 0)
        found.append({**version, "changed": None if parent is None else changes(parent, version)})
    return found


def changed_text(version: Version) -> str:
    """The column of the history's table."""
    if version["changed"] is None:
        return "" if version.get("parent_version") else "(first)"
    return ", ".join(f"{n} {v['before']} -> {v['after']}" for n, v in version["changed"].items()) or "nothing"
