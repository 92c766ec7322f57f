"""Filters of the store's lists: text from a query string in, checked values out.

Every function raises InvalidFilter, which names the parameter and says what is allowed.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from collections.abc import Collection
from typing import TypeVar

import msgspec

from scheduler.errors import InvalidShape
from scheduler.shapes import parse_shape_filter
from service.store.errors import InvalidFilter

MAX_LIMIT = 1000
MAX_TEXT = 256
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", flags=re.ASCII)
_INT64 = 1 << 63
_YEAR_1 = dt.datetime.min.replace(tzinfo=dt.UTC)
_Cursor = TypeVar("_Cursor", bound="PlanCursor | RequestCursor")


def time_filter(name: str, value: str | dt.datetime | None) -> dt.datetime | None:
    """An RFC 3339 time with any offset, as an aware UTC datetime."""
    if value is None:
        return None
    if isinstance(value, str):
        value = _parsed_time(name, value)
    if value.tzinfo is None:
        raise InvalidFilter(name, "needs a time zone, for example 2026-03-01T12:00:00Z")
    try:
        return value.astimezone(dt.UTC)
    except (OverflowError, ValueError) as error:
        raise InvalidFilter(name, f"{value.isoformat()} lies outside the years 1 to 9999 in UTC") from error


def _parsed_time(name: str, text: str) -> dt.datetime:
    example = "write it as RFC 3339, for example 2026-03-01T12:00:00Z or 2026-03-01T04:00:00-08:00"
    if not _RFC3339.fullmatch(text):
        if re.fullmatch(r".*\d \d\d:\d\d", text, flags=re.ASCII):
            example += ' (in a URL the "+" of an offset is written %2B)'
        raise InvalidFilter(name, f"cannot read {_short(text)} as a time; {example}")
    try:
        return dt.datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise InvalidFilter(name, f"{_short(text)}: {error}; {example}") from error


def time_range(
    since: str | dt.datetime | None, until: str | dt.datetime | None
) -> tuple[dt.datetime | None, dt.datetime | None]:
    """`since` (included) and `until` (excluded), checked together."""
    first, last = time_filter("since", since), time_filter("until", until)
    if first is not None and last is not None and last < first:
        raise InvalidFilter("until", f"{last.isoformat()} lies before since, {first.isoformat()}")
    return first, last


def earlier(moment: dt.datetime, by: dt.timedelta) -> dt.datetime:
    """So much before a UTC time, or the beginning of the calendar, which a filter may name."""
    return moment - min(by, moment - _YEAR_1)


def one_of(name: str, value: str | None, allowed: Collection[str]) -> str | None:
    """`value` when it is among `allowed`."""
    if value is not None and value not in allowed:
        raise InvalidFilter(name, f"there is no {_short(value)}; it is one of {', '.join(allowed)}")
    return value


def identifier(name: str, value: str | None) -> str | None:
    """A run or request id: any text that a database can hold, up to MAX_TEXT characters."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise InvalidFilter(name, f"must be text of 1 to {MAX_TEXT} characters")
    if not value.isprintable():
        raise InvalidFilter(name, "holds characters that no id has")
    return value


def shape_filter(value: str | None) -> dict[str, str | int]:
    """`decode:B4` as column values; empty for None."""
    if value is None:
        return {}
    try:
        return parse_shape_filter(value[:MAX_TEXT])
    except InvalidShape as error:
        raise InvalidFilter("shape", str(error)) from error


def limit_filter(value: int | str) -> int:
    """A page size from 1 to MAX_LIMIT."""
    allowed = f"must be a whole number from 1 to {MAX_LIMIT}"
    if isinstance(value, str):
        if not re.fullmatch(r"\d{1,9}", value, flags=re.ASCII):
            raise InvalidFilter("limit", f"{allowed}, not {_short(value)}")
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LIMIT:
        raise InvalidFilter("limit", f"{allowed}, not {_short(value)}")
    return value


class PlanCursor(msgspec.Struct, array_like=True, frozen=True, tag="p"):
    """The last plan of a page."""

    at: dt.datetime
    run_id: str
    fence: int


class RequestCursor(msgspec.Struct, array_like=True, frozen=True, tag="r"):
    """The last request of a page."""

    at: dt.datetime
    run_id: str
    request_id: str


def write_cursor(cursor: PlanCursor | RequestCursor) -> str:
    """The cursor as opaque text that is safe in a URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def read_plan_cursor(text: str | None) -> PlanCursor | None:
    """The cursor that `write_cursor` made for a plan."""
    if text is None:
        return None
    cursor = _decoded(text, PlanCursor)
    identifier("cursor", cursor.run_id)
    if not -_INT64 <= cursor.fence < _INT64:
        raise InvalidFilter("cursor", "cannot be read; start again without one")
    return cursor


def read_request_cursor(text: str | None) -> RequestCursor | None:
    """The cursor that `write_cursor` made for a request."""
    if text is None:
        return None
    cursor = _decoded(text, RequestCursor)
    identifier("cursor", cursor.run_id)
    identifier("cursor", cursor.request_id)
    return cursor


def _decoded(text: str, kind: type[_Cursor]) -> _Cursor:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise InvalidFilter(
            "cursor", "cannot be read; use the `next` of this list's last page, or start again without one"
        ) from error
    time_filter("cursor", cursor.at)
    return cursor


def _short(value: object) -> str:
    """`value` for a message, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
