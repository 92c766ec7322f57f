"""A sweep's trade-off curve and the same as a table, each point of which can be put into the draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.figures.sweep import Point, sweep_figure
from dashboard.formatting import coefficient_label
from dashboard.markup import aria
from dashboard.pages.policy import ids as here
from dashboard.pages.policy.measures import AXES, MEASURE_BY_KEY, Measure
from dashboard.pages.policy.values import all_text, show, show_with_hint
from scheduler.policy import COEFFICIENT_BY_NAME, CoefficientValue
from service.control.preview.messages import Figures, PreviewRequest, PreviewResult, SweepPoint

DEFAULT_X, DEFAULT_Y = "tokens_per_s", "ttft_p99_ms"
TABLE_MEASURES = ("ttft_p50_ms", "ttft_p99_ms", "inter_token_p99_ms", "tokens_per_s")


def sweep_part(request: PreviewRequest, found: PreviewResult) -> list[Any]:
    """The curve with its two axes to choose, and the table."""
    axes = [{"value": key, "label": MEASURE_BY_KEY[key].words} for key in AXES]
    names = " × ".join(coefficient_label(axis.coefficient) for axis in found.sweep_axes)
    return [
        html.H3(f"Trade-off: {names}"),
        html.P("A point that is clicked, or its button in the table, is put into the form as the draft.",
               className="muted"),
        html.Div(
            [
                dmc.Select(id=here.SWEEP_Y, label="Upwards", data=axes, value=DEFAULT_Y, allowDeselect=False),
                dmc.Select(id=here.SWEEP_X, label="To the right", data=axes, value=DEFAULT_X, allowDeselect=False),
            ],
            className="sweep-choice",
        ),
        html.Div(
            dcc.Graph(
                id=here.SWEEP_GRAPH,
                figure=trade_off(request, found, DEFAULT_X, DEFAULT_Y),
                config={"displayModeBar": False},
                responsive=True,
            ),
            role="img",
            **aria(label=f"Trade-off curve over {names}; the table below has its points"),
        ),
        _table(request, found),
    ]  # fmt: skip


def trade_off(request: PreviewRequest, found: PreviewResult, x_key: str, y_key: str) -> dict[str, Any]:
    """The figure with the measures `x_key` and `y_key`, which are of AXES."""
    x, y = MEASURE_BY_KEY[x_key], MEASURE_BY_KEY[y_key]
    points = [
        _point(_label(found, point, 0), _line(found, point), point.figures, x, y, _draft(request, found, point))
        for point in found.sweep
    ]
    running = _point("policy in force", "", found.running, x, y, all_text(request.running))
    draft = _point("draft", "", found.draft, x, y, all_text(request.draft))
    return sweep_figure(points, running, draft, _title(x), _title(y))


def _title(measure: Measure) -> str:
    better = {"lower": ", lower is better", "higher": ", higher is better", "neither": ""}[measure.better]
    unit = {"_ms": ", ms", "r_s": ", tokens/s"}.get(measure.key[-3:], "")
    return f"{measure.words}{unit}{better}"


def _point(label: str, line: str, figures: Figures, x: Measure, y: Measure, draft: str) -> Point:
    at_x, at_y = x.read(figures), y.read(figures)
    return Point(label, line, at_x, at_y, f"{x.words} {x.form(at_x)}", f"{y.words} {y.form(at_y)}", draft)


def _label(found: PreviewResult, point: SweepPoint, at: int) -> str:
    return show_with_hint(COEFFICIENT_BY_NAME[found.sweep_axes[at].coefficient], point.values[at])


def _line(found: PreviewResult, point: SweepPoint) -> str:
    names = [axis.coefficient for axis in found.sweep_axes]
    return f"{names[1]} {_label(found, point, 1)}" if len(names) > 1 else names[0]


def _values(request: PreviewRequest, found: PreviewResult, point: SweepPoint) -> Mapping[str, CoefficientValue]:
    changed = {axis.coefficient: value for axis, value in zip(found.sweep_axes, point.values, strict=True)}
    return {**request.draft, **changed}


def _draft(request: PreviewRequest, found: PreviewResult, point: SweepPoint) -> str:
    return all_text(_values(request, found, point))


def _table(request: PreviewRequest, found: PreviewResult) -> Any:
    measures = [MEASURE_BY_KEY[key] for key in TABLE_MEASURES]
    heads = [*(axis.coefficient for axis in found.sweep_axes), *(measure.words for measure in measures), ""]
    return html.Div(
        html.Table(
            [
                html.Caption("The points of the sweep", className="unseen"),
                html.Thead(html.Tr([html.Th(head, scope="col") for head in heads])),
                html.Tbody([_row(request, found, point, measures) for point in found.sweep]),
            ],
            className="compare digits",
        ),
        className="sideways",
        tabIndex="0",
        role="group",
        **aria(label="The points of the sweep"),
    )


def _row(request: PreviewRequest, found: PreviewResult, point: SweepPoint, measures: list[Measure]) -> Any:
    names = [show(value) for value in point.values]
    joined = " and ".join(names)
    button = into_form("Use", _draft(request, found, point), f"Use {joined} in the draft")
    return html.Tr(
        [
            html.Th(names[0] + (" (draft)" if point.is_draft else ""), scope="row"),
            *(html.Td(name) for name in names[1:]),
            *(html.Td(measure.form(measure.read(point.figures))) for measure in measures),
            html.Td(button),
        ],
        className="marked" if point.is_draft else None,
    )


def into_form(words: str, draft: str, label: str) -> Any:
    """A button that puts a draft, as an address has it, into the form; assets/policy.js does it."""
    attributes: dict[str, Any] = {"data-draft": draft, "aria-label": label}
    return html.Button(words, type="button", className="cell-button", **attributes)
