"""The list of requests: filters, one page of a table, and the way to the other pages."""

from __future__ import annotations

import math
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.formatting import capital, utc
from dashboard.grids import grid, number, text
from dashboard.markup import aria
from dashboard.pages.requests import ids
from dashboard.pages.requests.address import address_of
from dashboard.queries.requests import MOST_PAGES, ORDERS, PAGE_SIZE, Found, Wanted
from dashboard.routing import REQUESTS_PATH, TIMELINE_PATH, path_with, request_path
from dashboard.score import Row
from dashboard.span_picker import span_picker
from service.store.queries import FINISHES, RUNNING

FINISH_WORDS = {
    "stop": "ended by itself",
    "length": "reached its length",
    "abort": "cancelled",
    "error": "failed",
    RUNNING: "still running",
}
COLUMNS = [
    # The first three fit on a phone: which request, and how long it took.
    text(
        "request_id",
        "Request",
        width=158,
        cellRenderer="RequestLink",
        cellClass="digits",
        tooltip="Opens its life",
        tooltipField="request_id",
    ),
    number("first_ms", "First token", "milliseconds", width=104, tooltip="Arrival to the first output"),
    number("whole_ms", "In all", "milliseconds", width=88, tooltip="Arrival to the end"),
    text("arrived", "Arrived, UTC", width=168, cellClass="digits"),
    text("state", "State", width=148),
    number("queue_ms", "Queue", "milliseconds", width=90, tooltip="Arrival at the engine to its first graph"),
    number("prefill_ms", "Prefill", "milliseconds", width=92, tooltip="First graph to first output"),
    number("decode_ms", "Decode", "milliseconds", width=92, tooltip="First to last output"),
    number("prompt_tokens", "Prompt", "count", width=84, tooltip="Prompt tokens"),
    number("cached_tokens", "Cached", "count", width=84, tooltip="Of these found in the prefix cache"),
    number("output_tokens", "Output", "count", width=84, tooltip="Output tokens so far"),
    number("preemptions", "Set aside", "count", width=96, tooltip="How often it lost its memory to others"),
    text("model", "Model", width=190),
    text("error", "Error", width=240),
]
MAX_GRID_ROWS = 18
GRID_HEIGHT_PX = 620


def listing(wanted: Wanted, found: Found, search: str) -> Any:
    """The page for what was asked and found."""
    return html.Div(
        [
            dcc.Store(id=ids.ASKED),
            html.Div(
                [
                    html.H1("Requests"),
                    html.Div(className="spacer"),
                    span_picker(wanted.span, REQUESTS_PATH, search, drop=("page",)),
                ],
                className="title-row",
            ),
            _filters(wanted, found),
            *(_table(wanted, found) if found.rows else [_empty(wanted, found)]),
        ]
    )


def _filters(wanted: Wanted, found: Found) -> Any:
    runs = [
        {"value": run["run_id"], "label": f"{utc(run['started_at']).removesuffix(' UTC')} · {run['run_id']}"}
        for run in found.runs
    ]
    return html.Section(
        [
            dmc.TextInput(
                id=ids.TEXT,
                label="Id contains",
                value=wanted.text or "",
                placeholder="part of a request's id",
                size="sm",
                className="requests-text",
                debounce=True,
            ),
            _select(
                ids.FINISH, "State", [{"value": n, "label": capital(FINISH_WORDS[n])} for n in FINISHES], wanted.finish
            ),
            _select(ids.MODEL, "Model", _with(found.models, wanted.model), wanted.model),
            _select(ids.RUN, "Run", _with_run(runs, wanted.run), wanted.run),
            _select(
                ids.ORDER, "Order", [{"value": n, "label": w} for n, w in ORDERS.items()], wanted.order, free=False
            ),
        ],
        className="card requests-filters",
        role="search",
        **aria(label="Filter the requests"),
    )


def _select(component_id: str, label: str, data: list[Any], value: str | None, *, free: bool = True) -> Any:
    return dmc.Select(
        id=component_id,
        label=label,
        data=data,
        value=value,
        placeholder="Any" if free else None,
        clearable=free,
        allowDeselect=free,
        searchable=len(data) > 10,
        size="sm",
        comboboxProps={"width": "max-content", "position": "bottom-start"},
    )


def _with(names: list[str], chosen: str | None) -> list[dict[str, str]]:
    known = names if chosen is None or chosen in names else [chosen, *names]
    return [{"value": name, "label": name} for name in known]


def _with_run(runs: list[dict[str, str]], chosen: str | None) -> list[dict[str, str]]:
    if chosen is None or any(run["value"] == chosen for run in runs):
        return runs
    return [{"value": chosen, "label": chosen}, *runs]


def _table(wanted: Wanted, found: Found) -> list[Any]:
    rows = [row_of(row) for row in found.rows]
    height = None if len(rows) <= MAX_GRID_ROWS else GRID_HEIGHT_PX
    return [
        html.P(_note(wanted, found), id=ids.NOTE, className="muted table-note digits", role="status"),
        grid(
            ids.GRID,
            COLUMNS,
            rows,
            height_px=height,
            row_id="id",
            label=f"Requests, {ORDERS[wanted.order].lower()}",
        ),
        _pager(wanted, found.total),
    ]


def _note(wanted: Wanted, found: Found) -> str:
    start = (wanted.page - 1) * PAGE_SIZE
    what = f"{found.total:,} request{'' if found.total == 1 else 's'}"
    what += f"{' that fit' if wanted.is_filtered and found.total != 1 else ''}"
    return f"{what} arrived in {wanted.span.words}; {start + 1:,} to {start + len(found.rows):,} are shown."


def row_of(row: Row) -> dict[str, Any]:
    """One row of the table for a row of `requests` with `first_ms` and `whole_ms`."""
    finish = row["finish_reason"] or RUNNING
    fields: tuple[str, ...] = (
        "request_id",
        "model",
        "first_ms",
        "whole_ms",
        "queue_ms",
        "prefill_ms",
        "decode_ms",
        "prompt_tokens",
    )
    fields += ("cached_tokens", "output_tokens", "preemptions")
    return {
        "id": f"{row['run_id']}/{row['request_id']}",
        "href": request_path(row["run_id"], row["request_id"]),
        "arrived": utc(row["arrived_at"]).removesuffix(" UTC"),
        "state": FINISH_WORDS.get(finish, finish),
        "error": row["error"] or "",
        **{field: row[field] for field in fields},
    }


def _pager(wanted: Wanted, total: int) -> Any:
    pages = min(max(1, math.ceil(total / PAGE_SIZE)), MOST_PAGES)
    if pages == 1 and wanted.page == 1:
        return html.Nav(id=ids.PAGER, hidden=True)
    return html.Nav(
        [
            _step("← Previous page", wanted, wanted.page - 1, wanted.page > 1),
            html.Span(f"Page {wanted.page:,} of {pages:,}", className="digits muted"),
            _step("Next page →", wanted, wanted.page + 1, wanted.page < pages),
        ],
        id=ids.PAGER,
        className="requests-pager",
        **aria(label="Pages of requests"),
    )


def _step(words: str, wanted: Wanted, page: int, is_there: bool) -> Any:
    if not is_there:
        return html.Span(words, className="step disabled", **aria(disabled="true"))
    return dcc.Link(words, href=address_of(wanted, page=page, still=True), className="step")


def _empty(wanted: Wanted, found: Found) -> Any:
    if found.total:
        text_, link = "There are not so many pages.", ("Go to the first page", address_of(wanted))
    elif wanted.is_filtered:
        plain = Wanted(wanted.span, order=wanted.order)
        text_ = (
            f"No request that fits these filters arrived in {wanted.span.words}. The span or a filter is too narrow."
        )
        link = ("Show all requests of this span", address_of(plain))
    elif wanted.span.last == "7d":
        text_, link = (
            "No request arrived in the last 7 days. The timeline shows how to send a first one.",
            ("Go to the timeline", TIMELINE_PATH),
        )
    else:
        text_ = f"No request arrived in {wanted.span.words}."
        link = ("Show the last 7 days", path_with(REQUESTS_PATH, last="7d"))
    return html.Section(
        [html.P(text_), html.P(dcc.Link(link[0], href=link[1]))], id=ids.EMPTY, className="card", role="status"
    )
