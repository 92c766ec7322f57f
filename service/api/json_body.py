"""Request bodies: strict JSON objects and typed fields with messages that say what is allowed.

Everything raises BadRequest naming the field.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from service.api.errors import BadRequest

Body = Mapping[str, Any]
MOST_STOP_STRINGS = 16


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`: UTF-8, no NaN, no lone surrogates."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}. Send one JSON object, in UTF-8.") from error
    if not isinstance(value, dict):
        raise BadRequest(f"The body must be a JSON object, not {describe(value)}.")
    return value


def check_names(body: Body, known: Collection[str], where: str = "") -> None:
    """Refuses a field that is not in `known`; `where` is the path of the object, such as `messages[0].`."""
    for name in body:
        if name not in known:
            raise BadRequest(
                f"Unknown field {shown(name)}. Remove it; the fields are {', '.join(sorted(known))}.",
                where + shown(name),
            )


def shown(text: str, longest: int = 80) -> str:
    """`text` for a message, shortened."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def describe(value: object) -> str:
    """A JSON value in words, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return "an empty string" if not value else f"the string {shown(value, 40)!r}"
    if isinstance(value, int | float):
        return shown(str(value), 40) if not isinstance(value, int) or abs(value) < 10**30 else "a very large number"
    return "an array" if isinstance(value, list) else "an object"


def integer(body: Body, name: str, low: int, high: int) -> int | None:
    """An integer from low to high; None when absent or null. 1.0 and true are no integers."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{name} must be an integer from {low:,} to {high:,}, not {describe(value)}.", name)
    return value


def number(body: Body, name: str, low: float, high: float, default: float, *, above: bool = False) -> float:
    """A finite number from low (or above it) to high."""
    value = body.get(name)
    if value is None:
        return default
    start = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not low <= value <= high
        or (above and value == low)
    ):
        raise BadRequest(f"{name} must be a number {start}, not {describe(value)}.", name)
    assert math.isfinite(value)
    return float(value)


def boolean(body: Body, name: str, path: str | None = None) -> bool:
    """True or false; absent and null are false."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{path or name} must be true or false, not {describe(value)}.", path or name)
    return bool(value)


def text(body: Body, name: str, longest: int) -> str | None:
    """A string of at most `longest` characters; None when absent or null."""
    value = body.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > longest):
        raise BadRequest(f"{name} must be a string of at most {longest:,} characters, not {describe(value)}.", name)
    return value


def stop_strings(body: Body, most: int = MOST_STOP_STRINGS, longest: int = 512) -> tuple[str, ...]:
    """`stop`: null, a string, or up to `most` strings."""
    value = body.get("stop")
    items: Sequence[object] = [] if value is None else value if isinstance(value, list) else [value]
    if len(items) > most or not all(isinstance(item, str) and 0 < len(item) <= longest for item in items):
        raise BadRequest(
            f"stop must be a string or an array of up to {most} strings, each of 1 to {longest} characters.", "stop"
        )
    return tuple(str(item) for item in items)
