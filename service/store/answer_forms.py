"""An operator's answer as JSON or CSV, bounded in rows, bytes and the length of a value."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import io
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from service.store.question import LONGEST_VALUE, MOST_BYTES, Cut, Form, Told
from service.store.statements import Answer, json_text

_EXACT = 1 << 53
"""Whole numbers from here on are not exact in a browser, so JSON has them as text."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class _Values:
    """Makes plain values of a database's; counts those that are cut."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self.cut = 0

    def plain(self, value: Any) -> Any:
        """A text, number, boolean or None. Times are RFC 3339."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value if -_EXACT <= value <= _EXACT else str(value)
        if isinstance(value, float | decimal.Decimal):
            return float(value) if math.isfinite(value) else str(value)
        return self._text(value)

    def _text(self, value: Any) -> str:
        if isinstance(value, dt.datetime):
            utc = value.astimezone(dt.UTC) if value.tzinfo else value
            return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
        if isinstance(value, bytes | memoryview):
            data = bytes(value)
            text, length = data[: self._longest // 2].hex(), 2 * len(data)
        else:
            text = json_text(value) if isinstance(value, dict | list | tuple) else str(value)
            length = len(text)
        if length <= self._longest:
            return text
        self.cut += 1
        return f"{text[: self._longest]}… ({length:,} characters)"


def inert(value: Any) -> Any:
    """A text that a spreadsheet shows and never runs: one that could begin a formula gets an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def written(answer: Answer, form: Form, most_rows: int) -> tuple[bytes, Told]:
    """The answer's bytes and what is to be said of them. Raises what fetching rows raises."""
    values = _Values(LONGEST_VALUE[form])
    head, encode, tail = _json(answer) if form == "json" else _csv(answer)
    lines: list[bytes] = []
    size = len(head)
    cut: Cut | None = None
    for row in answer.rows:
        if len(lines) == most_rows:
            cut = "rows"
            break
        line = encode([values.plain(value) for value in row], not lines)
        size += len(line)
        if size > MOST_BYTES[form]:
            cut = "bytes"
            break
        lines.append(line)
    told = Told(rows=len(lines), truncated=cut, cut_values=values.cut)
    return b"".join([head, *lines, tail(told)]), told


def _json(answer: Answer) -> tuple[bytes, Any, Any]:
    columns = [{"name": name, "type": kind.value} for name, kind in zip(answer.columns, answer.types, strict=True)]
    head = b'{"columns":' + msgspec.json.encode(columns) + b',"rows":['

    def encode(row: Sequence[Any], is_first: bool) -> bytes:
        return (b"" if is_first else b",") + msgspec.json.encode(row)

    def tail(told: Told) -> bytes:
        said = {"truncated": told.truncated, "cut_values": told.cut_values}
        return b"]," + msgspec.json.encode(said)[1:]

    return head, encode, tail


def _csv(answer: Answer) -> tuple[bytes, Any, Any]:
    def encode(row: Sequence[Any], _is_first: bool) -> bytes:
        text = io.StringIO()
        csv.writer(text, lineterminator="\r\n").writerow([inert(value) for value in row])
        return text.getvalue().encode()

    return encode(answer.columns, True), encode, lambda _told: b""
