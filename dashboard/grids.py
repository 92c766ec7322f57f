"""AG Grid tables that look and behave alike: themed with the page, numbers right-aligned, text never read as markup.

Formatters and cell components named here live in assets/grids.js.
"""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag
from dash import html

from dashboard.markup import aria

ROW_HEIGHT_PX = 32
HEADER_HEIGHT_PX = 36
SPARE_ROWS = 3
"""Rows that are drawn above and below those in sight: each is as much work as one that is seen."""


def text(field: str, heading: str, *, width: int = 120, tooltip: str | None = None, **extra: Any) -> dict[str, Any]:
    """A column of plain text."""
    column = {"field": field, "headerName": heading, "width": width, **extra}
    return column if tooltip is None else column | {"headerTooltip": tooltip}


def number(
    field: str, heading: str, form: str = "quantity", *, width: int = 104, tooltip: str | None = None, **extra: Any
) -> dict[str, Any]:
    """A right-aligned column of numbers; `form` is count, quantity, milliseconds, percent or margin."""
    column = {
        "field": field,
        "headerName": heading,
        "width": width,
        "type": "rightAligned",
        "valueFormatter": {"function": f"{form}(params.value, params.data)"},
        **extra,
    }
    return column if tooltip is None else column | {"headerTooltip": tooltip}


def grid(
    grid_id: str,
    columns: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    *,
    height_px: int | None = None,
    row_id: str | None = None,
    label: str,
) -> Any:
    """A table; as tall as its rows without `height_px`. `row_id` is the field that identifies a row across updates."""
    options: dict[str, Any] = {
        "theme": {"function": "heliosTheme(themeQuartz)"},
        "rowHeight": ROW_HEIGHT_PX,
        "headerHeight": HEADER_HEIGHT_PX,
        "animateRows": False,
        "suppressCellFocus": False,
        "enableCellTextSelection": True,
        "rowBuffer": SPARE_ROWS,
        "tooltipShowDelay": 300,
        "suppressColumnVirtualisation": height_px is None,
    }
    if height_px is None:
        options["domLayout"] = "autoHeight"
    extra = {} if row_id is None else {"getRowId": f"params.data.{row_id}"}
    table = dag.AgGrid(
        id=grid_id,
        columnDefs=columns,
        rowData=rows,
        defaultColDef={"sortable": True, "resizable": True, "suppressMovable": True, "cellRendererParams": {}},
        dashGridOptions=options,
        className="grid",
        style={"height": None if height_px is None else f"{height_px}px", "width": "100%"},
        **extra,
    )
    # AgGrid takes no aria attributes of its own.
    return html.Div(table, role="group", className="grid-frame", **aria(label=label))
