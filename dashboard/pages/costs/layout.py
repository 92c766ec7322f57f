"""What the Costs page consists of."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboard.figures.costs import drift_figure, drift_words, errors_figure
from dashboard.formatting import age, count, milliseconds, utc
from dashboard.grids import grid, number, text
from dashboard.heat import heat_maps
from dashboard.markup import aria
from dashboard.pages.costs import ids
from dashboard.pages.costs.maps import heat_map
from dashboard.palette import kind_colour
from dashboard.queries.costs import MAX_COMPARED, Costs, Drift
from dashboard.routing import COSTS_PATH, TIMELINE_PATH, path_with
from dashboard.run_select import run_select
from dashboard.score import Row
from dashboard.span import Span
from dashboard.span_picker import other_values, span_picker
from service.store.catalog import ROLL_UP

GRAPH_CONFIG: Any = {"displayModeBar": False, "responsive": True, "showSendToCloud": False, "plotlyServerURL": ""}
MAX_GRID_ROWS = 18
COLUMNS = [
    text("shape", "Graph", width=216, cellRenderer="CostLink", tooltip="Shows how its duration went"),
    text("state", "Estimate", width=92, tooltip="unknown, fresh, or stale: older than the policy's estimate lifetime"),
    number("estimate_ms", "Predicted", "milliseconds", width=100, tooltip="The scheduler's estimate"),
    number("samples", "Samples", "count", width=90, tooltip="Behind the estimate: nine at the most"),
    text("age", "Age", width=82, cellClass="digits", tooltip="Of the newest sample"),
    number("device_ms_mean", "Mean", "milliseconds", width=92, tooltip="Device time in this span"),
    number("device_ms_max", "Longest", "milliseconds", width=94, tooltip="Device time in this span"),
    number("plans", "Plans", "count", width=88, tooltip="Completed in this span"),
    number("share", "Of the time", "percent", width=110, tooltip="Its share of the device time of this span"),
    number("error", "Observed", "percent", width=96, tooltip="All observed over all predicted time, less one"),
    number("median", "Median", "percent", width=88, tooltip="Of observed over predicted, less one"),
    number("p90", "90 %", "percent", width=82, tooltip="90th percentile of observed over predicted, less one"),
]


def layout(found: Costs, drift: Drift | None, chosen: Row | None, span: Span, search: str) -> Any:
    """The page for what was read; `chosen` is the graph whose drift is shown."""
    title = html.Div(
        [
            html.Div([html.H1("Costs"), html.Div(_subtitle(found), className="subtitle")]),
            html.Div(className="spacer"),
            span_picker(span, COSTS_PATH, search),
        ],
        className="title-row",
    )
    runs = run_select(ids.RUN, ids.RUN_ASKED, found.runs, found.catalog.run_id, "Estimates begin anew with each run")
    parts: list[Any] = [title, *runs]
    if not found.catalog.rows:
        return html.Div([*parts, _empty(found, span)])
    return html.Div([*parts, *_notes(found), *_body(found, drift, chosen, span, search)])


def _subtitle(found: Costs) -> str:
    if found.run is None:
        return "How long each prepared graph takes, as the scheduler reckons"
    return f"{found.run['model']} on {found.run['device']} · as of {utc(found.catalog.as_of)}"


def _empty(found: Costs, span: Span) -> Any:
    if found.run is None:
        text_ = f"No engine had run before the end of {span.words}, so no graph has a cost yet."
    else:
        text_ = "This run has completed no plan yet. Costs are learned from plans: send a request, and they appear."
    link = dcc.Link("Go to the timeline", href=TIMELINE_PATH)
    return html.Section([html.P(text_), html.P(link)], id=ids.EMPTY, className="card", role="status")


def _notes(found: Costs) -> list[Any]:
    rows = found.catalog.rows
    counts = {state: sum(row["cost_state"] == state for row in rows) for state in ("fresh", "stale", "unknown")}
    told = (
        f"{count(len(rows))} graphs: {counts['fresh']} with a fresh estimate, {counts['stale']} with a stale one, "
        f"{counts['unknown']} never measured."
    )
    if found.catalog.source == ROLL_UP:
        told += (
            " No checkpoint of the scheduler is stored for this time: only graphs that ran in the run's last day are "
            "known, prepared ones that never ran are not, and predictions are means of each one's last minute."
        )
    return [html.P(told, id=ids.NOTE, className="muted table-note", role="status")]


def _body(found: Costs, drift: Drift | None, chosen: Row | None, span: Span, search: str) -> list[Any]:
    kept = other_values(search, ("graph",))

    def address(row: Row) -> str:
        return path_with(COSTS_PATH, **{**kept, "graph": row["shape"]})

    name = None if chosen is None else chosen["shape"]
    maps = [heat_map(one, name, address) for one in heat_maps(found.catalog.rows)]
    return [
        html.H2("The catalog"),
        html.Div(maps, id=ids.MAPS, className="heat-maps"),
        html.P(
            "A cell is a prepared graph and its estimate; it opens the graph's history. Dashed: stale. An empty place: "
            "no such graph is prepared.",
            className="legend-note",
        ),
        *_drift(drift, chosen, span),
        *_errors(found),
        html.H2("Every graph"),
        grid(
            ids.GRID,
            COLUMNS,
            [table_row(row, found, address(row)) for row in found.catalog.rows],
            height_px=420 if len(found.catalog.rows) > MAX_GRID_ROWS else None,
            row_id="id",
            label="Every graph with its estimate and its durations",
        ),
    ]


def _drift(drift: Drift | None, chosen: Row | None, span: Span) -> list[Any]:
    if drift is None or chosen is None:
        return []
    samples = "" if chosen["samples"] is None else f" from {count(chosen['samples'])} samples"
    if chosen["cost_state"] == "unknown":
        estimate = "It has no estimate: it was never measured in this run."
    else:
        estimate = (
            f"Its estimate is {milliseconds(chosen['estimate_ms'])}{samples}, {chosen['cost_state']}; the newest "
            f"sample is {age(chosen['observation_age_ms'])} old."
        )
    told = drift_words(drift.rows, drift.by_minute)
    each = "minutes of the roll-up" if drift.by_minute else "observations"
    number_ = f"{count(drift.count)} {each}"
    if drift.by_minute:
        number_ = f"{count(len(drift.rows))} {each} of {count(drift.count)} plans"
    parts: list[Any] = [html.P(f"{estimate} {told}", className="digits")]
    if drift.rows:
        graph = dcc.Graph(id=ids.DRIFT, figure=drift_figure(drift.rows, drift.by_minute), config=GRAPH_CONFIG)
        parts += [
            html.Div(graph, role="img", **aria(label=f"Durations of {chosen['shape']} over time. {told}")),
            html.P(
                f"{number_} in {span.words}; the shortest and the longest are always drawn.", className="legend-note"
            ),
        ]
    return [html.H2(f"How {chosen['shape']} went", id=ids.CHOSEN), html.Section(parts, className="card")]


def _errors(found: Costs) -> list[Any]:
    if not found.compared:
        return []
    which = (
        f"the newest {found.compared:,} of {found.completed:,} plans"
        if found.compared >= MAX_COMPARED
        else (f"{found.compared:,} plans")
    )
    rows = [row for row in found.catalog.rows if row["median_ratio"] is not None]
    worst = max(rows, key=lambda row: abs(row["median_ratio"] - 1))
    off = f"{abs(worst['median_ratio'] - 1) * 100:.1f} %"
    told = (
        f"Of {which} with a prediction. Furthest off by its median: {worst['shape']}, "
        f"{off} {'longer' if worst['median_ratio'] > 1 else 'shorter'} than predicted."
    )
    graph = dcc.Graph(id=ids.ERRORS, figure=errors_figure(found.catalog.rows), config=GRAPH_CONFIG)
    return [
        html.H2("Predicted against observed"),
        html.Section([html.P(told), html.Div(graph, role="img", **aria(label=told))], className="card"),
    ]


def table_row(row: Row, found: Costs, href: str) -> dict[str, Any]:
    """One row of the table; shares and errors are ratios."""
    total = sum(one["device_ms_sum"] for one in found.catalog.rows)
    return {
        "id": row["shape"] + row["allocation"] + str(row["speculation_enabled"]),
        "shape": row["shape"],
        "colour": kind_colour(row["kind"]),
        "href": href,
        "state": row["cost_state"],
        "age": age(row["observation_age_ms"]),
        "share": row["device_ms_sum"] / total if total else None,
        "error": _less_one(row["cost_ratio"]),
        "median": _less_one(row["median_ratio"]),
        "p90": _less_one(row["p90_ratio"]),
        **{name: row[name] for name in ("estimate_ms", "samples", "device_ms_mean", "device_ms_max", "plans")},
    }


def _less_one(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1
