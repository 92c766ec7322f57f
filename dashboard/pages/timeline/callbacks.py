"""How the timeline page lives.

Each second the server sends only what is newer than the browser's cursor: a figure and table rows of the new plans,
which assets/timeline.js merges by id into what is shown. With nothing new the answer is empty (HTTP 204).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import dash
import sqlalchemy as sa
from dash import Input, Output, State

from dashboard import checks, ids
from dashboard.context import ControlRoom
from dashboard.data import Cursor, Strip, read_strip, timeline_rows
from dashboard.figures.timeline import timeline_figure
from dashboard.formatting import shape_words, utc_clock, words
from dashboard.markup import in_browser
from dashboard.minute import Minute, read_minute
from dashboard.pages.timeline.layout import CHOICES, MAX_PLANS, WINDOWS_S, empty_state
from dashboard.pages.timeline.minute import minute_lines
from dashboard.pages.timeline.strip import strip
from dashboard.palette import kind_colour
from dashboard.routing import MAX_REQUEST, plan_path
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
        State(ids.TIMELINE_REQUEST, "data"),
        State(ids.TIMELINE_CURSOR, "data"),
        running=[(Output(ids.TIMELINE_BUSY, "data"), True, False)],
    )
    async def send_news(
        _asked: object, limit: object, policy: object, request: object, cursor: object
    ) -> tuple[Any, Any, Any]:
        chosen = Wanted(
            checks.choice("limit", limit, tuple(CHOICES)),
            None if policy is None else checks.whole_number("policy", policy),
            None if request is None else checks.text("request", request, MAX_REQUEST),
        )
        known = None if dash.ctx.triggered_id == ids.TIMELINE_LIMIT else read_cursor(cursor)
        try:
            return await _news(room, chosen, known)
        except StoreError as error:
            return dash.no_update, dash.no_update, f"The trace store cannot be read now: {error}"

    @app.callback(
        Output(ids.TIMELINE_STRIP, "children"),
        Output(ids.TIMELINE_MINUTE, "children"),
        Output(ids.TIMELINE_STRIP_STATE, "data"),
        Input(ids.TIMELINE_ASK, "data"),
        State(ids.TIMELINE_STRIP_STATE, "data"),
        running=[(Output(ids.TIMELINE_STRIP_BUSY, "data"), True, False)],
    )
    async def show_strip(_asked: object, shown: object) -> tuple[Any, Any, Any]:
        try:
            found, minute = await room.read(_read_summary)
        except StoreError:
            return dash.no_update, dash.no_update, dash.no_update
        entries, lines = strip(found), minute_lines(minute)
        fingerprint = [[entry.heading, entry.value, entry.detail] for entry in entries]
        fingerprint += [[line.heading, line.text] for line in lines]
        if shown == fingerprint:
            raise dash.exceptions.PreventUpdate
        return [entry.render() for entry in entries], [line.render() for line in lines], fingerprint

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
        Output(ids.TIMELINE_SHOWN, "children"),
        Input(ids.TIMELINE_DELTA, "data"),
        Input(ids.TIMELINE_VIEW, "value"),
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


def _read_summary(engine: sa.Engine) -> tuple[Strip, Minute]:
    now = dt.datetime.now(dt.UTC)
    return read_strip(engine, now), read_minute(engine, now)


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What the operator chose: a key of CHOICES, and the filters of the address."""

    choice: str
    policy_version: int | None
    request: str | None

    @property
    def span_s(self) -> int | None:
        """The length of the time window, None where a number of plans was chosen."""
        return WINDOWS_S.get(self.choice)

    @property
    def limit(self) -> int:
        """How many plans at most."""
        return MAX_PLANS if self.span_s is not None else int(self.choice)


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What a browser has: every plan up to `cursor` (None: it has none), as of `until_ms` since 1970."""

    cursor: Cursor | None
    until_ms: float


def read_cursor(value: object) -> Known | None:
    """The browser's cursor. Raises RefusedInput."""
    if value is None:
        return None
    fields = checks.mapping("cursor", value)
    until_ms = checks.finite("cursor.until_ms", fields.get("until_ms"))
    if fields.get("run_id") is None:
        return Known(None, until_ms)
    cursor = Cursor(
        checks.text("cursor.run_id", fields.get("run_id"), checks.MAX_NAME),
        checks.whole_number("cursor.fence", fields.get("fence")),
    )
    return Known(cursor, until_ms)


async def _news(room: ControlRoom, wanted: Wanted, known: Known | None) -> tuple[Any, Any, Any]:
    now = dt.datetime.now(dt.UTC)
    after = None if known is None else known.cursor
    span_s = wanted.span_s
    since = None if span_s is None else now - dt.timedelta(seconds=span_s)

    def query(engine: sa.Engine) -> tuple[dict[str, Any] | None, str | None]:
        rows, goes_on = timeline_rows(
            engine,
            wanted.limit + (after is None),
            after=after,
            since=since,
            policy_version=wanted.policy_version,
            request=wanted.request,
        )
        if rows or (since is not None and _has_moved(wanted, known, now)):
            return delta(rows, wanted, now, known if goes_on else None), None
        return None, None if goes_on or since is not None else _model(engine)

    # Figures are made in the thread too: two thousand bars are a few ms that no stream should wait for.
    found, model = await room.read(query)
    if found is not None:
        return found, dash.no_update, None
    if model is None:
        raise dash.exceptions.PreventUpdate
    return {"empty": True}, empty_state(model, wanted.policy_version, wanted.request), None


def _has_moved(wanted: Wanted, known: Known | None, now: dt.datetime) -> bool:
    """Whether a time window without news has moved on by a sixtieth, so that its axis should follow."""
    if known is None or wanted.span_s is None:
        return True
    return now.timestamp() * 1e3 - known.until_ms >= wanted.span_s * 1e3 / 60


def _model(engine: sa.Engine) -> str:
    run = read_strip(engine, dt.datetime.now(dt.UTC)).health.newest_run
    return DEFAULT_MODEL if run is None else str(run["model"])


def delta(rows: list[dict[str, Any]], wanted: Wanted, now: dt.datetime, known: Known | None) -> dict[str, Any]:
    """What the browser merges: figure, table rows and the next cursor. `known` None: it replaces what is shown.

    One row beyond the limit says that a time window holds more than is shown.
    """
    now_ms = now.timestamp() * 1e3
    shown = rows[: wanted.limit]
    return {
        "replace": known is None,
        "limit": wanted.limit,
        "choice": wanted.choice,
        "span_ms": None if wanted.span_s is None else wanted.span_s * 1000,
        "now_ms": now_ms,
        "capped": len(rows) > len(shown),
        "figure": timeline_figure(shown, now_ms),
        "rows": [table_row(row) for row in shown],
        "cursor": _next_cursor(shown, known, now_ms),
    }


def _next_cursor(rows: list[dict[str, Any]], known: Known | None, now_ms: float) -> dict[str, Any]:
    """Behind the newest plan, or before the oldest one of the newest run that is still in flight."""
    if not rows:
        before = None if known is None else known.cursor
        key = {"run_id": None, "fence": None} if before is None else {"run_id": before.run_id, "fence": before.fence}
        return {**key, "until_ms": now_ms}
    newest = rows[0]
    open_fences = [row["fence"] for row in rows if row["run_id"] == newest["run_id"] and row["outcome"] == "in_flight"]
    fence = min([newest["fence"], *(fence - 1 for fence in open_fences)])
    return {"run_id": newest["run_id"], "fence": fence, "until_ms": now_ms}


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
