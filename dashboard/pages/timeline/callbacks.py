"""How the timeline page lives.

The browser holds the query of the address (ids.QUERY): zooming, moving, filters and colours change it, in the address
too, and each change asks the server for that view. While the view follows the newest plans a tick asks again, not
before the last answer came, not more often than the view's size allows; without news the answer is empty (HTTP 204).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import dash
import sqlalchemy as sa
from dash import Input, Output, State

from dashboard import checks
from dashboard.context import ControlRoom
from dashboard.figures.timeline import timeline_figure
from dashboard.markup import in_browser
from dashboard.minute import read_minute
from dashboard.pages.timeline import ids, wording
from dashboard.pages.timeline.layout import empty_state, spans
from dashboard.pages.timeline.minute import minute_lines
from dashboard.pages.timeline.tables import TABLE_ROWS, table_row
from dashboard.pages.timeline.view import View, read_view
from dashboard.queries.timeline import newest_mark, newest_model, read_picture
from dashboard.timeline_records import Filters, Picture
from service.store.errors import StoreError

DEFAULT_MODEL = "smollm2-135m-instruct"
MAX_QUERY = 2000
MAX_MARK = 1000
FEW_PLANS = 400
STEPS = 120
"""A moving span without news is drawn again when it has moved on by one of so many steps."""
SLOWEST_MS = 15_000
_OUTPUTS = (
    (ids.GRAPH, "figure"),
    (ids.GRID, "rowData"),
    (ids.SHOWN, "children"),
    (ids.LEGEND, "children"),
    (ids.EVENTS, "children"),
    (ids.NOTES, "children"),
    (ids.SPANS, "children"),
    (ids.TABLE_TITLE, "children"),
    (ids.STATE, "data"),
    (ids.BODY, "hidden"),
    (ids.EMPTY, "children"),
    (ids.EMPTY, "hidden"),
    (ids.PROBLEM, "children"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What a browser shows: the newest plans it knows of, as text, as of `until_ms` since 1970, for one query."""

    query: str
    mark: str
    until_ms: float


def register(app: dash.Dash, room: ControlRoom) -> None:
    """Adds the page's callbacks to `app`."""

    @app.callback(
        *(Output(component, prop) for component, prop in _OUTPUTS),
        Input(ids.QUERY, "data"),
        Input(ids.ASK, "data"),
        State(ids.STATE, "data"),
        running=[(Output(ids.BUSY, "data"), True, False)],
    )
    async def show(query: object, _asked: object, state: object) -> tuple[Any, ...]:
        search = checks.text("query", query, MAX_QUERY)
        known = read_known(state)
        now = dt.datetime.now(dt.UTC)
        view = read_view(search, now)
        try:
            return await room.read(lambda engine: _answer(engine, search, view, known, now))
        except StoreError as error:
            problem = f"The trace store cannot be read now: {error}. Reload the page to try again."
            return (*[dash.no_update] * (len(_OUTPUTS) - 1), problem)

    @app.callback(Output(ids.MINUTE, "children"), Input(ids.STATE, "data"))
    async def tell_minute(_state: object) -> Any:
        try:
            found = await room.read(lambda engine: read_minute(engine, dt.datetime.now(dt.UTC)))
        except StoreError:
            return dash.no_update
        return [line.render() for line in minute_lines(found)]

    _register_browser_side(app)


def _register_browser_side(app: dash.Dash) -> None:
    """What assets/timeline.js does; the outputs of most are stores that nobody reads."""
    # Dash drops an answer when the same callback was asked again meanwhile. On a slow line a tick each second would
    # drop every answer, so the next question waits for the last answer.
    in_browser(
        app,
        "askTimeline",
        Output(ids.ASK, "data"),
        Input(ids.TICK, "n_intervals"),
        State(ids.BUSY, "data"),
        first_call=False,
    )
    in_browser(
        app,
        "noteTimeline",
        Output(ids.NOTED, "data"),
        Input(ids.QUERY, "data"),
        Input(ids.STATE, "data"),
        Input(ids.GRAPH, "relayoutData"),
    )
    in_browser(
        app,
        "chooseTimeline",
        Output(ids.CHOSEN, "data"),
        Input(ids.BY, "value"),
        *(Input(ids.filter_field(name), "value") for name in ids.FILTER_FIELDS),
        first_call=False,
    )
    in_browser(app, "openMark", Output(ids.OPENED, "data"), Input(ids.GRAPH, "clickData"), first_call=False)
    in_browser(
        app,
        "pauseTimeline",
        Output(ids.PAUSED, "data"),
        Input(ids.LIVE, "checked"),
        State(ids.STATE, "data"),
        State(ids.QUERY, "data"),
        first_call=False,
    )
    in_browser(
        app,
        "nameOrigin",
        Output(ids.CURL, "children"),
        Input(ids.EMPTY, "hidden"),
        State(ids.CURL, "children"),
        first_call=False,
    )


def read_known(value: object) -> Known | None:
    """What the browser says that it shows. Raises RefusedInput."""
    if value is None:
        return None
    fields = checks.mapping("state", value)
    return Known(
        checks.text("state.query", fields.get("query"), MAX_QUERY),
        checks.text("state.mark", fields.get("mark"), MAX_MARK),
        checks.finite("state.asked_ms", fields.get("asked_ms")),
    )


def _answer(engine: sa.Engine, search: str, view: View, known: Known | None, now: dt.datetime) -> tuple[Any, ...]:
    """The callback's outputs, figure included: thousands of marks are some ms that no stream should wait for."""
    mark = newest_mark(engine)
    if known is not None and (known.query, known.mark) == (search, mark) and not _has_moved(view, known, now):
        raise dash.exceptions.PreventUpdate
    span = None if view.span is None else (view.span.since, view.span.until)
    picture = read_picture(engine, span, view.filters, view.by, now)
    if not picture.total and not mark and view == View(None, view.by, Filters()):
        model = newest_model(engine) or DEFAULT_MODEL
        return _nothing_yet(search, model, now)
    return _shown(search, view, picture, mark, now)


def _has_moved(view: View, known: Known, now: dt.datetime) -> bool:
    """Whether a moving span without news has moved on so far that its axis should follow."""
    if view.span is None or not view.follows:
        return False
    return now.timestamp() * 1e3 - known.until_ms >= view.span.seconds * 1e3 / STEPS


def _nothing_yet(search: str, model: str, now: dt.datetime) -> tuple[Any, ...]:
    state = {"query": search, "mark": "", "asked_ms": now.timestamp() * 1e3, "follows": True, "refresh_ms": 1000}
    same = [dash.no_update] * 8
    return (*same, state, True, empty_state(model), False, "")


def _shown(search: str, view: View, picture: Picture, mark: str, now: dt.datetime) -> tuple[Any, ...]:
    state = {
        "query": search,
        "mark": mark,
        "asked_ms": now.timestamp() * 1e3,
        "since_ms": picture.since.timestamp() * 1e3,
        "until_ms": picture.until.timestamp() * 1e3,
        "follows": view.follows,
        "refresh_ms": refresh_ms(picture),
    }
    title = "Plans, the newest first" if picture.binned is None else "The longest plans in view"
    return (
        timeline_figure(picture, view.by, now.timestamp() * 1e3),
        [table_row(row, view.by) for row in picture.rows[:TABLE_ROWS]],
        wording.caption(picture, view.filters, now),
        wording.legend(picture, view.by),
        wording.events(picture),
        wording.filter_note(view.filters),
        spans(view),
        title,
        state,
        False,
        dash.no_update,
        True,
        "",
    )


def refresh_ms(picture: Picture) -> int:
    """How long a view that follows waits between two answers: a second while it is small, up to SLOWEST_MS."""
    if picture.binned is None:
        return 1000 if len(picture.rows) <= FEW_PLANS else 3000
    return int(min(SLOWEST_MS, max(3000, picture.binned.width_us / 1000)))
