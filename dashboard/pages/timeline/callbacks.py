"""How the timeline page lives.

Each second the server sends only what is newer than the browser's cursor: a figure and table rows of the new plans,
which assets/timeline.js merges by id into what is shown. With nothing new the answer is empty (HTTP 204).
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import dash
import sqlalchemy as sa
from dash import Input, Output, State

from dashboard import checks, ids
from dashboard.context import ControlRoom
from dashboard.data import Cursor, Strip, read_strip, timeline_rows
from dashboard.figures.timeline import Window, busy_window, timeline_figure
from dashboard.formatting import shape_words, utc_clock, words
from dashboard.markup import in_browser
from dashboard.pages.timeline.layout import LIMITS, empty_state
from dashboard.pages.timeline.strip import strip
from dashboard.palette import kind_colour
from dashboard.routing import plan_path
from dashboard.score import Row
from service.store.errors import StoreError

DEFAULT_MODEL = "smollm2-135m-instruct"


def register(app: dash.Dash, room: ControlRoom) -> None:
    """Adds the page's callbacks to `app`."""

    @app.callback(
        Output(ids.TIMELINE_DELTA, "data"),
        Output(ids.TIMELINE_EMPTY, "children"),
        Output(ids.TIMELINE_PROBLEM, "children"),
        Input(ids.TIMELINE_ASK, "data"),
        Input(ids.TIMELINE_LIMIT, "value"),
        State(ids.TIMELINE_POLICY, "data"),
        State(ids.TIMELINE_CURSOR, "data"),
        running=[(Output(ids.TIMELINE_BUSY, "data"), True, False)],
    )
    async def send_news(_asked: object, limit: object, policy: object, cursor: object) -> tuple[Any, Any, Any]:
        chosen = int(checks.choice("limit", limit, [str(option) for option in LIMITS]))
        version = None if policy is None else checks.whole_number("policy", policy)
        known = None if dash.ctx.triggered_id == ids.TIMELINE_LIMIT else read_cursor(cursor)
        try:
            return await _news(room, chosen, version, known)
        except StoreError as error:
            return dash.no_update, dash.no_update, f"The trace store cannot be read now: {error}"

    @app.callback(
        Output(ids.TIMELINE_STRIP, "children"),
        Output(ids.TIMELINE_STRIP_STATE, "data"),
        Input(ids.TIMELINE_ASK, "data"),
        State(ids.TIMELINE_STRIP_STATE, "data"),
        running=[(Output(ids.TIMELINE_STRIP_BUSY, "data"), True, False)],
    )
    async def show_strip(_asked: object, shown: object) -> tuple[Any, Any]:
        try:
            entries = strip(await room.read(_read_strip))
        except StoreError:
            return dash.no_update, dash.no_update
        fingerprint = [[entry.heading, entry.value, entry.detail] for entry in entries]
        if shown == fingerprint:
            raise dash.exceptions.PreventUpdate
        return [entry.render() for entry in entries], fingerprint

    _register_browser_side(app)


def _register_browser_side(app: dash.Dash) -> None:
    # Dash drops an answer when the same callback was asked again meanwhile. On a slow line a tick each second would
    # drop every answer, so the next question waits for the last answer.
    in_browser(
        app,
        "ask",
        Output(ids.TIMELINE_ASK, "data"),
        Input(ids.TIMELINE_TICK, "n_intervals"),
        State(ids.TIMELINE_BUSY, "data"),
        State(ids.TIMELINE_STRIP_BUSY, "data"),
        first_call=False,
    )
    in_browser(
        app,
        "mergeTimeline",
        Output(ids.TIMELINE_GRAPH, "figure"),
        Output(ids.TIMELINE_GRID, "rowData"),
        Output(ids.TIMELINE_CURSOR, "data"),
        Output(ids.TIMELINE_BODY, "hidden"),
        Output(ids.TIMELINE_EMPTY, "hidden"),
        Input(ids.TIMELINE_DELTA, "data"),
        State(ids.TIMELINE_GRAPH, "figure"),
        State(ids.TIMELINE_GRID, "rowData"),
        State(ids.TIMELINE_ZOOM, "data"),
        first_call=False,
    )
    in_browser(
        app,
        "noteZoom",
        Output(ids.TIMELINE_ZOOM, "data"),
        Input(ids.TIMELINE_GRAPH, "relayoutData"),
        first_call=False,
    )
    in_browser(
        app,
        "nameOrigin",
        Output(ids.TIMELINE_CURL, "children"),
        Input(ids.TIMELINE_EMPTY, "hidden"),
        State(ids.TIMELINE_CURL, "children"),
        first_call=False,
    )
    in_browser(app, "pause", Output(ids.TIMELINE_TICK, "disabled"), Input(ids.TIMELINE_LIVE, "checked"))
    in_browser(app, "openPlan", Output(ids.URL, "pathname"), Input(ids.TIMELINE_GRAPH, "clickData"), first_call=False)


def _read_strip(engine: sa.Engine) -> Strip:
    return read_strip(engine, dt.datetime.now(dt.UTC))


def read_cursor(value: object) -> tuple[Cursor, Window] | None:
    """The browser's cursor: up to which plan it knows everything, and the window it shows. Raises RefusedInput."""
    if value is None:
        return None
    fields = checks.mapping("cursor", value)
    cursor = Cursor(
        checks.text("cursor.run_id", fields.get("run_id"), checks.MAX_NAME),
        checks.whole_number("cursor.fence", fields.get("fence")),
    )
    window = Window(
        checks.finite("cursor.start_ms", fields.get("start_ms")), checks.finite("cursor.end_ms", fields.get("end_ms"))
    )
    return cursor, window


async def _news(
    room: ControlRoom, limit: int, version: int | None, known: tuple[Cursor, Window] | None
) -> tuple[Any, Any, Any]:
    after = None if known is None else known[0]
    now_ms = dt.datetime.now(dt.UTC).timestamp() * 1e3

    def query(engine: sa.Engine) -> tuple[dict[str, Any] | None, str | None]:
        rows, goes_on = timeline_rows(engine, limit, after=after, policy_version=version)
        if not rows:
            return None, None if goes_on else _model(engine)
        return delta(rows, limit, now_ms, known[1] if known is not None and goes_on else None), None

    # Figures are made in the thread too: two thousand bars are a few ms that no stream should wait for.
    found, model = await room.read(query)
    if found is not None:
        return found, dash.no_update, None
    if model is None:
        raise dash.exceptions.PreventUpdate
    return {"empty": True}, empty_state(model, version), None


def _model(engine: sa.Engine) -> str:
    run = _read_strip(engine).health.newest_run
    return DEFAULT_MODEL if run is None else str(run["model"])


def delta(rows: list[dict[str, Any]], limit: int, now_ms: float, known: Window | None) -> dict[str, Any]:
    """What the browser merges: figure, table rows and the next cursor. `known` None: it replaces what is shown."""
    window = busy_window(rows, now_ms, known)
    assert window is not None, "there are rows"
    return {
        "replace": known is None,
        "limit": limit,
        "figure": timeline_figure(rows, now_ms, known),
        "rows": [table_row(row) for row in rows],
        "cursor": _next_cursor(rows, window),
    }


def _next_cursor(rows: list[dict[str, Any]], window: Window) -> dict[str, Any]:
    """Behind the newest plan, or before the oldest one of the newest run that is still in flight."""
    newest = rows[0]
    open_fences = [row["fence"] for row in rows if row["run_id"] == newest["run_id"] and row["outcome"] == "in_flight"]
    fence = min([newest["fence"], *(fence - 1 for fence in open_fences)])
    return {
        "run_id": newest["run_id"],
        "fence": fence,
        "start_ms": window.start_ms,
        "end_ms": window.end_ms,
    }


def table_row(row: Row) -> dict[str, Any]:
    """One row of the table under the timeline."""
    return {
        "id": f"{row['run_id']}/{row['fence']}",
        "committed_ms": row["committed_at"].timestamp() * 1e3,
        "committed_clock": utc_clock(row["committed_at"]),
        "plan": str(row["fence"]),
        "href": plan_path(row["run_id"], row["fence"]),
        "shape": shape_words(row),
        "colour": kind_colour(row["kind"]),
        "reason": words(row["reason"]),
        "selected_cost_ms": None if row["cost_state"] == "unknown" else row["selected_cost_ms"],
        "device_ms": row["device_ms"],
        "value_rate": row["value_rate"],
        "score_unit": "per ms" if row["score_kind"] == "rate" else "undivided",
        "margin": row["margin"],
        "active_rows": row["active_rows"],
        "prompt_tokens": row["prompt_tokens"],
        "output_tokens": row["output_tokens"],
        "queue_depth": row["queue_depth"],
        "policy_version": row["policy_version"],
        "outcome": words(row["outcome"]),
    }
