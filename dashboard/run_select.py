"""The choice of a run for pages that show one: another run is another address (assets/costs.js)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.formatting import utc
from dashboard.score import Row

MANY = 10


def run_select(select_id: str, store_id: str, runs: Sequence[Row], chosen: str | None, description: str) -> list[Any]:
    """The select and the store with the run that the page is of; register `chooseRun` for both."""
    data = [
        {"value": run["run_id"], "label": f"{utc(run['started_at']).removesuffix(' UTC')} · {run['run_id']}"}
        for run in runs
    ]
    select = dmc.Select(
        id=select_id,
        label="Run",
        description=description,
        data=data,
        value=chosen,
        allowDeselect=False,
        searchable=len(data) > MANY,
        size="sm",
        className="run-select",
    )
    return [dcc.Store(id=store_id, data=chosen), html.Div(select, hidden=not data)]
