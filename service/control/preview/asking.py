"""What somebody asks of a preview, checked: the same rules for HTTP, the command line and the dashboard."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.errors import InvalidPolicy
from scheduler.policy import COEFFICIENT_BY_NAME, CoefficientValue, PolicyConfig
from service.control.checks import check_coefficients
from service.control.preview.errors import InvalidPreview
from service.control.preview.messages import (
    MOST_MINUTES,
    MOST_SWEEP_AXES,
    MOST_SWEEP_POINTS,
    PreviewRequest,
    Sweep,
    SweepAxis,
)

SHORTEST_MINUTES = 0.1
MOST_SEED = (1 << 32) - 1
LONGEST_RUN_ID = 200


def preview_request(
    current: PolicyConfig,
    version: int | None,
    *,
    preset: str | None = None,
    coefficients: Mapping[str, Any] | None = None,
    minutes: Any = None,
    until: dt.datetime | None = None,
    run_id: Any = None,
    sweep: Any = None,
    seed: Any = None,
) -> PreviewRequest:
    """The request of a draft: the preset (else the current policy), then the coefficients.

    `sweep` maps one or two coefficients to lists of values. Raises InvalidPolicy and InvalidPreview, each naming every
    problem of its kind.
    """
    given = {} if coefficients is None else coefficients
    check_coefficients(preset, given)
    draft = (current if preset is None else PolicyConfig.preset(preset)).merged(given)
    problems: dict[str, str] = {}
    request = PreviewRequest(
        draft=draft.as_dict(),
        running=current.as_dict(),
        running_version=version,
        minutes=_number("minutes", minutes, 10.0, SHORTEST_MINUTES, MOST_MINUTES, problems),
        until=until,
        run_id=_run_id(run_id, problems),
        sweep=_sweep(sweep, problems),
        seed=int(_number("seed", seed, 0, 0, MOST_SEED, problems, whole=True)),
    )
    if problems:
        raise InvalidPreview(problems)
    return request


def _number(
    name: str, value: Any, default: float, low: float, high: float, problems: dict[str, str], whole: bool = False
) -> float:
    if value is None:
        return default
    kind = "a whole number" if whole else "a number"
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits or not low <= value <= high or not math.isfinite(value):
        problems[name] = f"must be {kind} from {low:g} to {high:,.0f}"
        return default
    return float(value)


def _run_id(value: Any, problems: dict[str, str]) -> str | None:
    if value is None or (isinstance(value, str) and 0 < len(value) <= LONGEST_RUN_ID and value.isprintable()):
        return value
    problems["run"] = "must be the id of a run, as GET /api/runs lists them"
    return None


def _sweep(value: Any, problems: dict[str, str]) -> Sweep | None:
    """Axes in the order in which they are given; their values ascending, each once."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not 1 <= len(value) <= MOST_SWEEP_AXES:
        problems["sweep"] = "must map one or two coefficients to lists of values"
        return None
    axes = tuple(SweepAxis(name, _values(name, values, problems)) for name, values in value.items())
    points = math.prod(len(axis.values) for axis in axes)
    if points > MOST_SWEEP_POINTS:
        problems["sweep"] = f"has {points} points; at most {MOST_SWEEP_POINTS} are replayed"
    return Sweep(axes)


def _values(name: str, values: Any, problems: dict[str, str]) -> tuple[CoefficientValue, ...]:
    coefficient = COEFFICIENT_BY_NAME.get(name)
    where = f"sweep.{name[:80]}"
    if coefficient is None:
        problems[where] = f"no such coefficient; the coefficients are {', '.join(COEFFICIENT_BY_NAME)}"
        return ()
    if not isinstance(values, Sequence) or isinstance(values, str) or not 1 <= len(values) <= MOST_SWEEP_POINTS:
        problems[where] = f"must be a list of 1 to {MOST_SWEEP_POINTS} values"
        return ()
    try:
        taken = [PolicyConfig.balanced().merged({name: value}).as_dict()[name] for value in values]
    except InvalidPolicy as error:
        problems[where] = f"each value {error.problems[name]}"
        return ()
    distinct = tuple(dict.fromkeys(taken))
    return distinct if coefficient.choices else tuple(sorted(distinct, key=float))
