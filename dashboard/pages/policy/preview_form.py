"""What the fields of a preview say: its window and its sweep. Pure."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping, Sequence

from dashboard import checks
from dashboard.pages.policy.preview_panel import MAX_ENTRY
from dashboard.pages.policy.sweep_values import MAX_VALUES, read_sweep
from scheduler.policy import COEFFICIENT_BY_NAME
from service.control.preview.asking import SHORTEST_MINUTES
from service.control.preview.messages import MOST_MINUTES, Sweep

_NUMBER = re.compile(r"\d{1,5}(\.\d{1,4})?", flags=re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Minutes of traffic up to `until` (None: the newest). `problems` by field; empty when it can be used."""

    minutes: float
    until: dt.datetime | None
    problems: Mapping[str, str]


def read_window(minutes: object, until: object) -> Window:
    """What the fields of the window say. Raises RefusedInput."""
    length, end = checks.text("minutes", minutes, MAX_ENTRY), checks.text("until", until, MAX_ENTRY)
    problems: dict[str, str] = {}
    asked = float(length) if _NUMBER.fullmatch(length) else 0.0
    if not SHORTEST_MINUTES <= asked <= MOST_MINUTES:
        problems["minutes"] = f"must be a number of minutes from {SHORTEST_MINUTES:g} to {MOST_MINUTES:g}"
    moment = None
    if end:
        try:
            moment = dt.datetime.fromisoformat(end.removesuffix("UTC").strip())
            moment = (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
        except (ValueError, OverflowError):
            problems["until"] = "must be a time like 2026-11-30 14:05"
    return Window(asked, moment, problems)


@dataclasses.dataclass(frozen=True, slots=True)
class AskedSweep:
    """The sweep, None without one; `problems`: one for each of the two fields of values, None where it is fine."""

    sweep: Sweep | None
    problems: tuple[str | None, str | None]


def read_axes(fields: Sequence[object]) -> AskedSweep:
    """What (first coefficient, its values, second coefficient, its values) say. Raises RefusedInput."""
    names = [None if name is None else checks.choice("coefficient", name, tuple(COEFFICIENT_BY_NAME))
             for name in (fields[0], fields[2])]  # fmt: skip
    entries = [checks.text("values", value, MAX_VALUES) for value in (fields[1], fields[3])]
    chosen = [(at, name) for at, name in enumerate(names) if name is not None]
    sweep, problems = read_sweep([(COEFFICIENT_BY_NAME[name], entries[at]) for at, name in chosen])
    told: list[str | None] = [None, None]
    for at, name in chosen:  # the second one of two equal ones is the one to change
        if name in problems and not (at == 0 and names[0] == names[1]):
            told[at] = problems[name]
    return AskedSweep(sweep, (told[0], told[1]))
