"""The SQL page's callbacks: most are the browser's (assets/sql.js); the server draws the chart of what it is sent."""

from __future__ import annotations

from typing import Any

import dash
from dash import Input, Output, State

from dashboard.checks import MAX_NAME, choice, mapping
from dashboard.errors import RefusedInput
from dashboard.figures.sql import KINDS, Column, Value, sql_figure
from dashboard.markup import in_browser
from dashboard.pages.sql import ids
from dashboard.pages.sql.address import MOST_SERIES

MOST_ROWS = 10_000
LONGEST_VALUE = 3_000


def register(app: dash.Dash) -> None:
    """Adds the page's callbacks to `app`."""
    in_browser(app, "sqlOpen", Output(ids.OPENED, "data"), Input(ids.STATE, "data"))
    in_browser(
        app, "sqlAsk", Output(ids.RAN, "data"), Input(ids.RUN, "n_clicks"), State(ids.ROWS, "value"), first_call=False
    )
    in_browser(
        app,
        "sqlChoose",
        Output(ids.HOW, "children"),
        Input(ids.COOKBOOK, "value"),
        State(ids.STATE, "data"),
        first_call=False,
    )
    in_browser(
        app,
        "sqlView",
        Output(ids.TABLE_PART, "hidden"),
        Output(ids.CHART_PART, "hidden"),
        Input(ids.VIEW, "value"),
        Input(ids.ROWS, "value"),
    )
    in_browser(
        app,
        "sqlPick",
        Output(ids.PICKED, "data"),
        Input(ids.X, "value"),
        Input(ids.Y, "value"),
        Input(ids.KIND, "value"),
        Input(ids.VIEW, "value"),
        Input(ids.PICK_TICK, "data"),
        first_call=False,
    )

    @app.callback(
        Output(ids.GRAPH, "figure"),
        Output(ids.CHART_NOTE, "children"),
        Input(ids.PICKED, "data"),
        prevent_initial_call=True,
    )
    async def draw(picked: object) -> tuple[dict[str, Any], str]:
        return drawn(picked)


def drawn(picked: object) -> tuple[dict[str, Any], str]:
    """The figure and its note, of columns that the browser sends: {"x", "y", "kind"}. Raises RefusedInput."""
    if picked is None:
        return {"data": [], "layout": {}}, "There is no column of numbers to draw."
    given = mapping("chart", picked)
    kind = choice("kind", given.get("kind"), KINDS)
    x, series = _column("x", given.get("x")), given.get("y")
    if not isinstance(series, list) or not 0 < len(series) <= MOST_SERIES:
        raise RefusedInput("y", f"must be one to {MOST_SERIES} columns")
    columns = [_column("y", column) for column in series]
    if any(len(column.values) != len(x.values) for column in columns):
        raise RefusedInput("y", "must have as many values as x")
    figure, shown = sql_figure(x, columns, kind)
    if shown < len(x.values):
        return figure, (
            f"{shown:,} of {len(x.values):,} rows are drawn: of each stretch of rows the lowest and the highest value."
        )
    return figure, f"{shown:,} row{'' if shown == 1 else 's'} drawn, in the answer's order."


def _column(name: str, given: object) -> Column:
    column = mapping(name, given)
    title, values = column.get("name"), column.get("values")
    if not isinstance(title, str) or len(title) > MAX_NAME:
        raise RefusedInput(name, f"must have a name of at most {MAX_NAME} characters")
    if not isinstance(values, list) or len(values) > MOST_ROWS or not all(map(_is_value, values)):
        raise RefusedInput(name, f"must have at most {MOST_ROWS:,} values, each a text, a number or null")
    return Column(title, values)


def _is_value(value: Value | object) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= LONGEST_VALUE) or isinstance(value, int | float)
