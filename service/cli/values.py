"""Option values that click has no type for."""

from __future__ import annotations

import math
import re
from typing import Any
from urllib.parse import urlsplit

import click

from scheduler.capacity import verification_width
from scheduler.errors import InvalidCatalog, InvalidPolicy
from scheduler.policy import COEFFICIENT_BY_NAME, PRESETS, CoefficientValue, PolicyConfig

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


class ByteSize(click.ParamType[int]):
    """A number of bytes: 1073741824, 512MiB, 1.5GB."""

    name = "bytes"

    def __init__(self, minimum: int = 1) -> None:
        self._minimum = minimum

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)", str(value).strip(), re.ASCII)
        unit = UNITS.get(found[2].upper()) if found else None
        if found is None or unit is None:
            self.fail(f"{value!r} is not a size; write 1073741824, 512MiB or 8GiB", param, ctx)
        size = int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit
        if not self._minimum <= size < 1 << 62:
            self.fail(f"{value!r} is outside {self._minimum} bytes to {(1 << 62) - 1} bytes", param, ctx)
        return size


class MultipleOf(click.ParamType[int]):
    """A whole number of times `step`, at most `most`."""

    name = "integer"

    def __init__(self, step: int, most: int) -> None:
        self._step = step
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        number = int(text) if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) else 0
        if not self._step <= number <= self._most or number % self._step:
            self.fail(f"{text!r} is not a multiple of {self._step} from {self._step} to {self._most}", param, ctx)
        return number


class FiniteRange(click.FloatRange):
    """A number in a range; nan and the infinities are in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class CoefficientType(click.ParamType[CoefficientValue]):
    """A value of the policy coefficient `coefficient`, checked against its allowed range."""

    def __init__(self, coefficient: str) -> None:
        self._coefficient = COEFFICIENT_BY_NAME[coefficient]
        self.name = "|".join(self._coefficient.choices) or "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> CoefficientValue:
        parsed = coefficient_value(self._coefficient.name, str(value))
        why = self._coefficient.problem(parsed)
        if why is not None:
            self.fail(why, param, ctx)
        return parsed


class PresetType(click.ParamType[str]):
    """A preset's name."""

    name = f"{'|'.join(sorted(PRESETS))}|budget:N"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            PolicyConfig.preset(str(value))
        except InvalidPolicy as error:
            self.fail(error.problems["preset"], param, ctx)
        return str(value)


def coefficient_value(name: str, text: str) -> CoefficientValue:
    """The number or name that `text` means for coefficient `name`; not yet checked against its range."""
    known = COEFFICIENT_BY_NAME.get(name)
    if known is not None and known.choices:
        return text
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


class VerificationType(click.ParamType[str]):
    """adaptive, or fixed:N."""

    name = "adaptive|fixed:N"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            verification_width(str(value))
        except InvalidCatalog as error:
            self.fail(str(error), param, ctx)
        return str(value)


class HttpUrl(click.ParamType[str]):
    """An http or https address."""

    name = "url"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            parts = urlsplit(text)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            valid = False
        if not valid:
            self.fail(f"{text!r} is not an http:// or https:// address", param, ctx)
        return text.rstrip("/")
