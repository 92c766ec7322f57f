"""What the SQL page consists of. Statements run through POST /api/sql, which assets/sql.js asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.figures.sql import KINDS
from dashboard.markup import aria
from dashboard.pages.sql import ids
from dashboard.pages.sql.address import LONGEST_STATEMENT, MOST_SERIES, ROWS, VIEWS, Shown

GRAPH_CONFIG: Any = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "toImage"],
    "showSendToCloud": False,
    "showEditInChartStudio": False,
    "plotlyServerURL": "",
}
EXAMPLE = "SELECT kind, count(*) AS plans, avg(device_ms) AS mean_ms\nFROM plans\nGROUP BY kind\nORDER BY plans DESC"
DATABASES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


def layout(shown: Shown, reference: Mapping[str, Any], dialect: str) -> Any:
    """The page for what its address says; `dialect` is sqlite or postgresql."""
    questions = {q["question"]: {"sql": q[dialect], "how": q["how"]} for q in reference["questions"]}
    asked = {"run": bool(shown.statement), "x": shown.x, "y": list(shown.y), "kind": shown.kind}
    state = {"questions": questions, **asked}
    return html.Section(
        [
            dcc.Store(id=ids.STATE, data=state),
            *(dcc.Store(id=name) for name in (ids.OPENED, ids.RAN, ids.PICKED, ids.PICK_TICK)),
            html.Div(
                [
                    html.H1("SQL"),
                    html.P(
                        f"One SELECT on the trace store, in {DATABASES[dialect]}'s dialect. It can only read, and ends "
                        "after ten seconds.",
                        className="subtitle",
                    ),
                ],
                className="title-row",
            ),
            html.Div(
                [
                    html.Div([_editor(shown, reference["questions"]), _result(shown)], className="sql-main"),
                    html.Aside([_history(), _tables(reference["tables"], dialect)], className="sql-side"),
                ],
                className="sql-columns",
            ),
        ],
        className="sql-page",
    )


def _editor(shown: Shown, questions: Sequence[Mapping[str, str]]) -> Any:
    groups: dict[str, list[str]] = {}
    for question in questions:
        groups.setdefault(question["group"], []).append(question["question"])
    return html.Div(
        [
            dmc.Select(
                id=ids.COOKBOOK,
                label="A question from the cookbook",
                placeholder="Choose one, or write your own below",
                data=[{"group": group, "items": items} for group, items in groups.items()],
                searchable=True,
                clearable=True,
                maxDropdownHeight=420,
                nothingFoundMessage="No question has these words",
            ),
            html.P(id=ids.HOW, className="muted sql-how"),
            html.Label("Statement", htmlFor=ids.STATEMENT, className="sql-label"),
            dcc.Textarea(
                id=ids.STATEMENT,
                value=shown.statement or EXAMPLE,
                className="sql-statement",
                spellCheck=False,
                wrap="off",
                rows=7,
                maxLength=LONGEST_STATEMENT,
            ),
            html.Div(
                [
                    html.Button("Run", id=ids.RUN, className="sql-button primary", type="button"),
                    html.Button("Cancel", id=ids.CANCEL, className="sql-button", type="button", disabled=True),
                    html.Span(["or ", html.Kbd("Ctrl"), " + ", html.Kbd("Enter")], className="muted sql-keys"),
                    html.Span(className="spacer"),
                    html.Span("At most", className="muted sql-words"),
                    dmc.SegmentedControl(
                        id=ids.ROWS,
                        data=[{"value": rows, "label": f"{int(rows):,}"} for rows in ROWS],
                        value=shown.rows,
                        size="xs",
                        **aria(label="The most rows of an answer"),
                    ),
                    html.Span("rows", className="muted sql-words"),
                    html.Button("Copy link", id=ids.LINK, className="sql-button", type="button"),
                ],
                className="sql-actions",
            ),
            html.Div(id=ids.STATUS, className="sql-status", role="status", **aria(live="polite")),
        ],
        className="card sql-editor",
    )


def _result(shown: Shown) -> Any:
    return html.Div(
        [
            html.Div(
                [
                    dmc.SegmentedControl(
                        id=ids.VIEW,
                        data=[{"value": view, "label": view.capitalize()} for view in VIEWS],
                        value=shown.view,
                        size="sm",
                        **aria(label="How the answer is shown"),
                    ),
                    html.Span(className="spacer"),
                    html.Span("Download", className="muted sql-words"),
                    html.Button("CSV", id=ids.EXPORT_CSV, className="sql-button", type="button"),
                    html.Button("JSON", id=ids.EXPORT_JSON, className="sql-button", type="button"),
                ],
                className="sql-actions sql-result-head",
            ),
            html.Div(_table(), id=ids.TABLE_PART, hidden=shown.view != "table"),
            html.Div(_chart(shown), id=ids.CHART_PART, hidden=shown.view != "chart"),
        ],
        id=ids.RESULT,
        className="card sql-result",
        hidden=True,
    )


def _table() -> Any:
    table = dag.AgGrid(
        id=ids.GRID,
        columnDefs=[],
        rowData=[],
        defaultColDef={"sortable": True, "resizable": True, "minWidth": 70},
        dashGridOptions={
            "theme": {"function": "heliosTheme(themeQuartz)"},
            "rowHeight": 30,
            "headerHeight": 34,
            "animateRows": False,
            "enableCellTextSelection": True,
            "suppressFieldDotNotation": True,
        },
        className="grid",
        style={"height": "min(460px, 70vh)", "width": "100%"},
    )
    return html.Div(table, role="group", className="grid-frame", **aria(label="The answer's rows"))


def _chart(shown: Shown) -> list[Any]:
    return [
        html.Div(
            [
                dmc.Select(id=ids.X, label="Across", data=[], value=shown.x, allowDeselect=False, size="sm"),
                dmc.MultiSelect(
                    id=ids.Y, label="Up", data=[], value=list(shown.y), maxValues=MOST_SERIES, size="sm",
                    placeholder="columns of numbers",
                ),
                dmc.Select(
                    id=ids.KIND,
                    label="Drawn as",
                    data=[{"value": kind, "label": kind} for kind in KINDS],
                    value=shown.kind or KINDS[0],
                    allowDeselect=False,
                    size="sm",
                ),
            ],
            className="sql-chart-controls",
        ),
        html.Div(
            dcc.Graph(id=ids.GRAPH, figure={"data": [], "layout": {}}, config=GRAPH_CONFIG, style={"height": "420px"}),
            className="sql-graph",
            role="img",
            **aria(label="Chart of the answer; the table holds the same values"),
        ),
        html.P(id=ids.CHART_NOTE, className="muted"),
    ]  # fmt: skip


def _history() -> Any:
    return html.Details(
        [
            html.Summary("Asked before"),
            html.Div(id=ids.HISTORY, className="sql-history"),
            html.P("Kept in this browser only.", className="muted"),
        ],
        className="card sql-panel",
    )


def _tables(tables: Sequence[Mapping[str, Any]], dialect: str) -> Any:
    """Names and what they hold; the browser fills in the columns of one that is opened."""
    return html.Div(
        [
            html.H2("Tables and views"),
            html.P("A column's name goes into the statement with a click.", className="muted"),
            *(_table_entry(table, dialect) for table in tables),
        ],
        className="card sql-panel",
    )


def _table_entry(table: Mapping[str, Any], dialect: str) -> Any:
    what = html.Span("view", className="muted") if table["is_view"] else ""
    return html.Details(
        [html.Summary([html.Code(table["name"]), what]), html.P(table["about"], className="muted"), html.Dl()],
        className="sql-table",
        **{"data-table": table["name"], "data-dialect": dialect},
    )
