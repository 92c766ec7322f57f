"""Checks of what people type beside the coefficients, and what of it is kept in the audit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scheduler.errors import InvalidPolicy
from scheduler.policy import PRESET_FORMS, PolicyConfig
from service.control.errors import InvalidChange

MAX_ACTOR = 100
MAX_NOTE = 500  # characters; the API and the dashboard check with the same numbers
MAX_VERSION = (1 << 63) - 1
_JOINERS = "\u200c\u200d"  # invisible, and needed to write some names
_AUDIT_ENTRIES = 32
_AUDIT_TEXT = 200


def checked_actor(actor: object) -> str:
    """Who makes the change, without blanks around it. Raises InvalidChange."""
    text = _line("actor", actor, MAX_ACTOR)
    if not text:
        raise InvalidChange("actor", "is empty; say who makes the change")
    return text


def checked_note(note: object) -> str:
    """Why the change is made, one line, may be empty. Raises InvalidChange."""
    return _line("note", note, MAX_NOTE)


def checked_version(name: str, version: object) -> int:
    """A policy version's number. Raises InvalidChange."""
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= MAX_VERSION:
        raise InvalidChange(name, f"must be a policy version's number, 1 or more, not {_bounded(version)!r}")
    return version


def check_coefficients(preset: object, coefficients: object) -> None:
    """Raises InvalidPolicy naming everything that is wrong with the preset and the coefficients at once."""
    problems: dict[str, str] = {}
    if preset is not None and not _is_preset(preset):
        problems["preset"] = f"must be {PRESET_FORMS}, not {_bounded(preset)!r}"
    if not isinstance(coefficients, Mapping) or not all(isinstance(name, str) for name in coefficients):
        problems["coefficients"] = "must map coefficient names to values"
    else:
        try:
            PolicyConfig.balanced().merged(coefficients)
        except InvalidPolicy as error:
            problems.update(error.problems)
    if problems:
        raise InvalidPolicy(problems)


def _is_preset(name: object) -> bool:
    try:
        return isinstance(name, str) and PolicyConfig.preset(name) is not None
    except InvalidPolicy:
        return False


def audited(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request as any database can keep it: bounded, finite, without control characters."""
    return {name: _bounded(value) for name, value in request.items()}


def audited_text(value: object, limit: int = _AUDIT_TEXT) -> str:
    """Text for the audit: bounded, printable, whatever it was."""
    text = value if isinstance(value, str) else f"a {type(value).__name__}"
    return "".join(c if c.isprintable() or c in _JOINERS else "�" for c in text[:limit])


def _bounded(value: object) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= MAX_VERSION else "a number beyond 64 bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        kept = {audited_text(k): _bounded(v) for k, v in list(value.items())[:_AUDIT_ENTRIES]}
        return kept if len(value) <= _AUDIT_ENTRIES else {**kept, "…": f"{len(value) - _AUDIT_ENTRIES} more"}
    if isinstance(value, str):
        return audited_text(value)
    return f"a {type(value).__name__}"


def _line(name: str, value: object, limit: int) -> str:
    if not isinstance(value, str):
        raise InvalidChange(name, f"must be text, not {_bounded(value)!r}")
    text = value.strip()
    if len(text) > limit:
        raise InvalidChange(name, f"has {len(text)} characters; at most {limit} are kept")
    if not all(c.isprintable() or c in _JOINERS for c in text):
        raise InvalidChange(name, "must be one line without control characters")
    return text
