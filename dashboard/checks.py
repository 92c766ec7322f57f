"""Checks of what a browser sends to callbacks. Whoever can reach the port can send anything, so each value is checked.

Every function returns the checked value or raises RefusedInput.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from dashboard.errors import RefusedInput

MAX_TEXT = 500
MAX_NAME = 200
MAX_INTEGER = 2**63

Choice = TypeVar("Choice", int, str)


def choice(name: str, value: object, offered: Collection[Choice]) -> Choice:
    """`value` if it is one of the offered ones, of the same type."""
    for option in offered:
        if type(option) is type(value) and option == value:
            return option
    raise RefusedInput(name, "must be one of " + ", ".join(str(option) for option in offered))


def text(name: str, value: object, longest: int = MAX_TEXT) -> str:
    """A str of at most `longest` characters without control characters, stripped; None counts as empty."""
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > longest or any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise RefusedInput(name, f"must be text of at most {longest} characters on one line")
    return value.strip()


def whole_number(name: str, value: object) -> int:
    """An int from 0 to 2**63-1; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_INTEGER:
        raise RefusedInput(name, "must be a whole number, 0 or more")
    return value


def finite(name: str, value: object) -> float:
    """A finite number as float; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RefusedInput(name, "must be a finite number")
    return float(value)


def mapping(name: str, value: object) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise RefusedInput(name, "must be an object")
    return value
