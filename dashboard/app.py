"""Makes the dashboard: one Dash application over one store and one policy control."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import dash
import sqlalchemy as sa
from dash import Input, Output
from dash.exceptions import DependencyException
from fastapi import Request
from fastapi.responses import JSONResponse

from dashboard import banner, guard_place, ids, routing
from dashboard.banner import Status, nothing_to_tell
from dashboard.context import ControlRoom
from dashboard.errors import RefusedInput
from dashboard.markup import in_browser
from dashboard.pages import costs, learning, overview, plan, policy, requests, sql, timeline
from dashboard.shell import message_page, shell
from service.control.errors import ControlError
from service.control.guards import GuardControl
from service.control.policy import PolicyControl
from service.control.preview.jobs import Previews
from service.store.errors import StoreError

ASSETS = pathlib.Path(__file__).parent / "assets"
READ_ERRORS = (StoreError, ControlError)


def create_dashboard(
    *,
    engine: sa.Engine,
    control: PolicyControl,
    status: Status = nothing_to_tell,
    guards: GuardControl | None = None,
    previews: Previews | None = None,
    mixed_prefill: bool = True,
) -> dash.Dash:
    """The dashboard over a trace store; mount it with dashboard.asgi.mount. Reads only, but for the last ones.

    `status` gives what the banner on every page says. Without `guards` or `previews` the policy page offers none.
    `mixed_prefill`: whether the server prepared graphs that read a prompt beside running answers.
    """
    app = dash.Dash(
        "helios-dashboard",
        backend="fastapi",
        url_base_pathname=routing.PREFIX,
        assets_folder=str(ASSETS),
        serve_locally=True,
        suppress_callback_exceptions=True,
        title="Helios",
        update_title=None,  # type: ignore[arg-type]
        use_pages=False,
        add_log_handler=False,
        meta_tags=[{"name": "color-scheme", "content": "light dark"}],
    )
    # Without this the page opens a websocket, used or not.
    app.backend.websocket_capability = False
    app.server.add_exception_handler(RefusedInput, _refused)
    app.server.add_exception_handler(DependencyException, _no_such_script)
    app.layout = shell  # made anew for each caller
    room = ControlRoom(engine, control, guards=guards, previews=previews, mixed_prefill=mixed_prefill)
    _register_router(app, room)
    banner.register(app, status)
    guard_place.register(app, room)
    for page in (overview, timeline, plan, requests, costs, learning, policy, sql):
        page.register(app, room)
    return app


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"title": "Refused input", "status": 422, "detail": str(error)}, status_code=422)


async def _no_such_script(_request: Request, _error: Exception) -> JSONResponse:
    return JSONResponse({"title": "Not Found", "status": 404, "detail": "There is no such script."}, status_code=404)


def _register_router(app: dash.Dash, room: ControlRoom) -> None:
    @app.callback(Output(ids.PAGE, "children"), Input(ids.URL, "pathname"), Input(ids.URL, "search"))
    async def show_page(pathname: object, search: object) -> Any:
        return await page_for(room, str(pathname or ""), str(search or ""))

    in_browser(app, "markNavigation", Output(ids.NAV_MARK, "data"), Input(ids.URL, "pathname"))


async def _overview(room: ControlRoom, search: str) -> Any:
    return await guard_place.with_trial(room, await overview.page(room, search))


LAYOUTS: Mapping[str, Callable[[ControlRoom, str], Awaitable[Any]]] = {
    routing.OVERVIEW_PATH: _overview,
    routing.TIMELINE_PATH: timeline.page,
    routing.REQUESTS_PATH: requests.page,
    routing.COSTS_PATH: costs.page,
    routing.LEARNING_PATH: learning.page,
    routing.POLICY_PATH: policy.page,
    routing.SQL_PATH: sql.page,
}
"""What makes each page of the navigation, from the query of its address."""


async def page_for(room: ControlRoom, pathname: str, search: str) -> Any:
    """The page at a path, or a page that says what is wrong."""
    try:
        match routing.parse(pathname):
            case routing.Page(path, _):
                return await LAYOUTS[path](room, search)
            case routing.PlanRoute(run_id, fence):
                return await plan.page(room, run_id, fence)
            case routing.RequestRoute(run_id, request_id):
                return await requests.one_request(room, run_id, request_id)
            case None:
                back = ("Go to the overview", routing.OVERVIEW_PATH)
                return message_page("No such page", "This address belongs to no page of the dashboard.", link=back)
    except READ_ERRORS as error:
        return message_page("This page cannot be shown now", f"{error}. Reload the page to try again.")
