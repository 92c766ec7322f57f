"""What came of a preview: the trust it deserves, the figures side by side, and their distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.figures.preview import quantile_figure
from dashboard.formatting import age, count, utc
from dashboard.markup import aria
from dashboard.pages.policy import ids as here
from dashboard.pages.policy.measures import MEASURES, Measure, difference, error_words, in_words, verdict, within_error
from dashboard.pages.policy.sweep_view import into_form, sweep_part
from dashboard.pages.policy.values import all_text, differences, show_with_hint
from service.control.preview.messages import Figures, PreviewResult, PreviewStatus

PUT_BACK = "Put this preview's draft into the form"
RECORDED, RUNNING, DRAFT = "really happened", "policy in force", "draft"


def preview_result(status: PreviewStatus) -> list[Any]:
    """Everything below the progress bar; nothing before there is a result."""
    found = status.result
    if found is None:
        return []
    return [
        html.Div(
            [
                html.H3("What the draft changes"),
                html.P(_changes(status)),
                html.P(_headline(found), className="headline"),
            ]
        ),
        _trust(found),
        _table(found),
        html.Div(
            [
                _chart(here.PREVIEW_FIRST_TOKEN, "Time to the first token", found, "ttft_ms"),
                _chart(here.PREVIEW_TIME_PER_TOKEN, "Time per token, an answer's mean", found, "time_per_token_ms"),
                _chart(here.PREVIEW_GAPS, "Inter-token times, each of them", found, "inter_token_ms"),
            ],
            className="preview-charts",
        ),
        *(sweep_part(status.request, found) if found.sweep else []),
        html.P(_cost(status, found), className="muted"),
        into_form(PUT_BACK, all_text(status.request.draft), PUT_BACK),
    ]


def _changes(status: PreviewStatus) -> list[Any]:
    request = status.request
    changes = differences(request.running, request.draft)
    version = "the policy in force" if request.running_version is None else f"version {request.running_version}"
    if not changes:
        return [f"The draft had the values of {version}; both replays are of the same policy."]
    told: list[Any] = [f"Against {version}: "]
    for at, change in enumerate(changes):
        before, after = (show_with_hint(change.coefficient, value) for value in (change.before, change.after))
        told += [", " if at else "", html.Code(change.coefficient.name), f" {before} → {after}"]
    return told


def _headline(found: PreviewResult) -> str:
    words = in_words(found.running, found.draft)
    if not words:
        return "Nothing can be compared: too little was recorded."
    doubtful = within_error(found.running, found.draft, found.simulator_error)
    told = f" Smaller than the simulator's own error: {', '.join(doubtful)}." if doubtful else ""
    return f"Under the draft: {words}.{told}"


def trust_words(found: PreviewResult) -> str:
    """How far the simulator is from what happened, in one sentence."""
    said = [words for words in map(error_words, found.simulator_error) if words is not None]
    if not said:
        return "Too little was recorded to say how far the simulator is from what really happened."
    return f"On this window the simulator was off by this much from what really happened: {', '.join(said)}."


def _trust(found: PreviewResult) -> Any:
    window = found.window
    length = age((window.until - window.since).total_seconds() * 1e3)
    parts = [trust_words(found)]
    if not found.recorded_under_running:
        many = "s" if len(window.policy_versions) != 1 else ""
        versions = ", ".join(map(str, window.policy_versions))
        parts.append(
            f"The window was served under version{many} {versions}, not by the policy in force, so this difference is "
            "of the policies as well as of the simulator."
        )
    if found.sampled is not None:
        parts.append(found.sampled.words)
    parts += found.notes
    replayed = f"{count(found.requests)} request{'' if found.requests == 1 else 's'}"
    what = f"{replayed} in {length}, {utc(window.since)} to {utc(window.until)}, {window.model} on {window.device}."
    return dmc.Alert(
        [html.P(parts[0], className="trust-words"), *(html.P(part) for part in parts[1:]), html.P(what)],
        title="How far to trust it",
        color="yellow" if found.sampled is not None or not found.recorded_under_running else "indigo",
    )


def _table(found: PreviewResult) -> Any:
    heads = ("", RECORDED, f"{RUNNING}, simulated", f"{DRAFT}, simulated", "draft against in force")
    rows = [_row(measure, found) for measure in MEASURES if _known(measure, found)]
    return html.Div(
        html.Table(
            [
                html.Caption("The recorded window and both replays side by side", className="unseen"),
                html.Thead(html.Tr([html.Th(head, scope="col") for head in heads])),
                html.Tbody(rows),
            ],
            className="compare digits",
        ),
        className="sideways",
        tabIndex="0",
        role="group",
        **aria(label="Figures side by side"),
    )


def _known(measure: Measure, found: PreviewResult) -> bool:
    return any(measure.read(figures) is not None for figures in (found.recorded, found.running, found.draft))


def _row(measure: Measure, found: PreviewResult) -> Any:
    recorded, running, draft = (measure.read(figures) for figures in (found.recorded, found.running, found.draft))
    words = html.Abbr(measure.words, title=measure.meaning) if measure.meaning else measure.words
    return html.Tr(
        [
            html.Th(words, scope="row"),
            html.Td(measure.form(recorded)),
            html.Td(measure.form(running)),
            html.Td(measure.form(draft), className="after"),
            html.Td(difference(measure, running, draft), className=f"judgement {verdict(measure, running, draft)}"),
        ]
    )


def _chart(chart_id: str, heading: str, found: PreviewResult, column: str) -> Any:
    curves = [(name, curve_of(figures, column)) for name, figures in _sides(found)]
    if not any(curve for _, curve in curves):
        return html.Div([html.H3(heading), html.P("No value was recorded.", className="muted")])
    return html.Div(
        [
            html.H3(heading),
            html.Div(
                dcc.Graph(id=chart_id, figure=quantile_figure(curves, "time"), config={"displayModeBar": False}),
                role="img",
                **aria(label=f"{heading} by quantile; the table above has the main ones"),
            ),
        ]
    )


def _sides(found: PreviewResult) -> Sequence[tuple[str, Figures]]:
    return ((RECORDED, found.recorded), (RUNNING, found.running), (DRAFT, found.draft))


def curve_of(figures: Figures, column: str) -> list[tuple[float, float]]:
    """One distribution of the figures: ttft_ms, time_per_token_ms or inter_token_ms."""
    curves: Mapping[str, list[tuple[float, float]]] = {
        "ttft_ms": figures.ttft_ms,
        "time_per_token_ms": figures.time_per_token_ms,
        "inter_token_ms": figures.inter_token_ms,
    }
    return curves[column]


def _cost(status: PreviewStatus, found: PreviewResult) -> str:
    return (
        f"{count(found.plans)} plans were simulated in {age(found.seconds * 1e3)}; asked for by {status.by}, "
        f"{utc(status.made_at)}. The address of this page leads to this result."
    )
