"""The catalog as heat maps: tables whose cells open a graph's history. A darker cell took longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash import dcc, html

from dashboard.formatting import age, count, milliseconds
from dashboard.heat import STEPS, HeatMap
from dashboard.markup import aria
from dashboard.score import Row

Address = Callable[[Row], str]


def heat_map(found: HeatMap, chosen: str | None, address: Address) -> Any:
    """One map as a table; `address` gives where a graph's history is, `chosen` is the label of the shown one."""
    head = html.Tr(
        [
            html.Th("B", scope="col", title="B: requests that fit in"),
            *[html.Th(count(column), scope="col") for column in found.columns],
        ]
    )
    rows = [
        html.Tr(
            [
                html.Th(count(batch), scope="row"),
                *[_cell(found, found.cells.get((batch, column), []), chosen, address) for column in found.columns],
            ]
        )
        for batch in found.batches
    ]
    top = html.Tr(
        [html.Th("", scope="col"), html.Th(found.column_heading, colSpan=len(found.columns), scope="colgroup")]
    )
    table = html.Table(
        [html.Thead([top, head]), html.Tbody(rows)], className="heat-table digits", **aria(label=found.title)
    )
    return html.Section(
        [html.H3(found.title), html.Div(table, className="wide-frame"), _scale(found)], className="card heat-card"
    )


def _cell(found: HeatMap, rows: list[Row], chosen: str | None, address: Address) -> Any:
    if not rows:
        return html.Td(html.Span("", title="No such graph is prepared"), className="heat-none")
    return html.Td([_graph(found, row, len(rows) > 1, chosen, address) for row in rows])


def _graph(found: HeatMap, row: Row, several: bool, chosen: str | None, address: Address) -> Any:
    known = row["cost_state"] != "unknown"
    text = milliseconds(row["estimate_ms"]) if known else "not yet"
    if several:
        text = f"P {row['target_rows']}: {text}"
    marks = [f"heat-{found.shade(row)}", f"heat-{row['cost_state']}", *(["here"] if row["shape"] == chosen else [])]
    return dcc.Link(text, href=address(row), className=" ".join(["heat-cell", *marks]), title=_told(row))


def _told(row: Row) -> str:
    if row["cost_state"] == "unknown":
        return f"{row['shape']}: prepared, never measured in this run"
    samples = "" if row["samples"] is None else f" from {row['samples']} sample{'' if row['samples'] == 1 else 's'}"
    return (
        f"{row['shape']}: {milliseconds(row['estimate_ms'])}{samples}, {row['cost_state']}, the newest "
        f"{age(row['observation_age_ms'])} old; {row['plans']:,} plans in this span"
    )


def _scale(found: HeatMap) -> Any:
    least, most = found.range_ms
    if not most:
        return html.P("None of them has been measured.", className="legend-note")
    swatches = [html.Span(className=f"heat-swatch heat-{step}") for step in range(1, STEPS + 1)]
    return html.P(
        [milliseconds(least), html.Span(swatches, className="heat-swatches"), milliseconds(most)],
        className="legend-note",
    )
