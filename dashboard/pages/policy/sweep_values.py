"""The values of a sweep as people write them: `4, 8, 16`, or `2..32` and `2..32/7` for evenly spread ones. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from dashboard.pages.policy.values import MAX_ENTRY, parse_entry
from scheduler.policy import Coefficient, CoefficientValue, PolicyConfig
from service.control.preview.messages import MOST_SWEEP_POINTS, Sweep, SweepAxis

MAX_VALUES = 400
POINTS_OF_A_RANGE = 5
EXAMPLE = "4, 8, 16 or 2..32/5"
_RANGE = re.compile(r"([^,.]*(?:\.[^,.]+)?)\.\.([^,/]+)(?:/(\d{1,3}))?", flags=re.ASCII)


def read_values(coefficient: Coefficient, entry: str) -> tuple[CoefficientValue, ...] | str:
    """The values, ascending, each once; or what is wrong with them."""
    if len(entry) > MAX_VALUES:
        return f"has more than {MAX_VALUES} characters"
    match = None if coefficient.choices else _RANGE.fullmatch(entry.strip())
    parts = [part.strip() for part in entry.split(",")]
    found: Sequence[object] | str = (
        [parse_entry(coefficient, part) for part in parts if part]
        if match is None
        else _spread(coefficient, match[1].strip(), match[2].strip(), match[3])
    )
    if isinstance(found, str):
        return found
    return _checked(coefficient, found)


def _checked(coefficient: Coefficient, found: Sequence[object]) -> tuple[CoefficientValue, ...] | str:
    values: list[CoefficientValue] = []
    for value in found:
        problem = coefficient.problem(value)
        if problem is not None or not isinstance(value, int | float | str):
            return f"each value {problem}"[:200]
        values.append(value if coefficient.choices else int(value) if coefficient.integer else float(value))
    unique = [name for name in coefficient.choices if name in values] if coefficient.choices else sorted(set(values))
    if len(unique) < 2:
        return f"needs two values or more, such as {EXAMPLE}"
    if len(unique) > MOST_SWEEP_POINTS:
        return f"has {len(unique)} values; at most {MOST_SWEEP_POINTS} are tried"
    return tuple(unique)


def _spread(coefficient: Coefficient, first: str, last: str, points: str | None) -> list[float] | str:
    """Evenly on a logarithmic scale, or on a plain one from 0; to three digits."""
    low, high = parse_entry(coefficient, first), parse_entry(coefficient, last)
    count = POINTS_OF_A_RANGE if points is None else int(points)
    if isinstance(low, str) or isinstance(high, str) or not isinstance(low, int | float):
        return f"is no range; say it like {EXAMPLE}"
    if not isinstance(high, int | float) or not 0 <= low < high < math.inf:
        return "a range goes from a smaller number to a larger one, 0 or more"
    if not 2 <= count <= MOST_SWEEP_POINTS:
        return f"a range has 2 to {MOST_SWEEP_POINTS} points"
    shares = [at / (count - 1) for at in range(count)]
    if low == 0:
        spread = [high * share for share in shares]
    else:
        spread = [math.exp(math.log(low) + (math.log(high) - math.log(low)) * share) for share in shares]
    inner = [float(f"{value:.3g}") for value in spread[1:-1]]
    return [float(low), *inner, float(high)]


def read_sweep(axes: Sequence[tuple[Coefficient, str]]) -> tuple[Sweep | None, dict[str, str]]:
    """The sweep over these (coefficient, values as written), and what is wrong by coefficient's name."""
    problems: dict[str, str] = {}
    read: list[SweepAxis] = []
    for coefficient, entry in axes:
        values = read_values(coefficient, entry)
        if isinstance(values, str):
            problems[coefficient.name] = values
        else:
            read.append(SweepAxis(coefficient.name, values))
    if len({coefficient.name for coefficient, _ in axes}) < len(axes):
        problems[axes[-1][0].name] = "is on both axes; choose another one"
    points = math.prod(len(axis.values) for axis in read)
    if not problems and points > MOST_SWEEP_POINTS:
        problems[axes[-1][0].name] = f"{points} combinations; at most {MOST_SWEEP_POINTS} are tried"
    return (Sweep(tuple(read)) if read and not problems else None), problems


def suggestion(value: CoefficientValue, coefficient: Coefficient) -> str:
    """Values around the present one that make a useful first sweep; all choices of a name.

    What is off is tried around the value that the preset `interactive` has, if it has one.
    """
    if coefficient.choices:
        return ", ".join(coefficient.choices)
    number = float(value)
    if coefficient.name == "token_budget" and number == 0:
        return "0, 256, 512, 1024, 2048"
    if number == 0:
        usual = float(getattr(PolicyConfig.interactive(), coefficient.name))
        return (
            ", ".join(["0", *(f"{usual * factor:g}" for factor in (0.25, 0.5, 1, 2))]) if usual else "0, 1, 4, 16, 64"
        )
    values = [f"{number * factor:g}"[:MAX_ENTRY] for factor in (0.25, 0.5, 1, 2, 4)]
    return ", ".join(values if not coefficient.integer else [str(round(number * f)) for f in (0.25, 0.5, 1, 2, 4)])
