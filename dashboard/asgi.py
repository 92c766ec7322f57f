"""The one place where Dash meets Litestar: an ASGI mount at /dashboard/.

Dash has no Litestar backend, so its FastAPI application is mounted. What the seam needs:
- Litestar strips the mount's prefix and adds a slash; the path is restored from `raw_path`.
- The mount also matches `/dashboardfoo`; that is refused.
- Mounts get no lifespan events, so Dash never sets up its catch-all route. Page addresses are known (routing.parse)
  and are answered with the index page here; every other unknown path stays a 404.
- Dash runs any callback for anyone who posts JSON. Other sites' posts, oversized or unreadable bodies, unknown
  callbacks and inputs, states or outputs of another shape than the callback's are refused before they reach it.
- Callbacks that change something (dashboard.caller.operators_only) answer 403 to a caller who may not.
- Every answer carries a content security policy (dashboard.content_policy).
- What a callback cannot make sense of all the same is answered with 422, and one line in the log.
- A callback that only reads ends when its caller leaves; one that changes something goes on.
- With a reader (dashboard.reader), callbacks that only read are answered by its process, and their bytes passed on. All
  checks are made here, before that.
- Websocket callbacks are not used; a websocket is closed during its handshake (HTTP 403).
"""

from __future__ import annotations

import contextlib
import http
import json
import logging
import traceback
import urllib.parse
from collections.abc import Mapping
from typing import Any, TypeGuard

import dash
import msgspec
from dash.exceptions import InvalidCallbackReturnValue
from fastapi import Request
from fastapi.responses import JSONResponse
from litestar.enums import ScopeType
from litestar.handlers import ASGIRouteHandler, asgi
from litestar.types import HTTPRequestEvent, Receive, Scope, Send
from litestar.types.asgi_types import HTTPScope

from dashboard.caller import NOT_ALLOWED, acting_for, caller, is_for_operators, may_change
from dashboard.content_policy import guarded
from dashboard.in_service import runs_in_service
from dashboard.reader.messages import Answer, Call
from dashboard.reader.reader import Reader, ReaderFailed
from dashboard.routing import PREFIX, parse
from service.credentials.caller import SCOPE_KEY
from service.leaving import ClientLeft, unless_left

_log = logging.getLogger(__name__)
_MANY = (["ALL"], ["ALLSMALLER"])
INPUT_FAULTS = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, InvalidCallbackReturnValue,
)  # fmt: skip
"""What code raises on values of another kind than it expects. Errors with a handler of their own keep it."""

MAX_BODY_BYTES = 4 << 20
CALLBACK_PATH = f"{PREFIX}_dash-update-component"
PAGE_PROBLEM = f"There is no such page. The dashboard starts at {PREFIX}"

NO_SUCH_PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>No such page · Helios</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem }}</style>
</head>
<body>
<h1>No such page</h1>
<p>This address belongs to no page of the dashboard.</p>
<p><a href="{PREFIX}">Go to the overview</a></p>
</body>
</html>
"""


class CallbackBody(msgspec.Struct):
    """The part of a callback post that is checked here; `_check_shapes` looks into the Any."""

    output: str
    outputs: Any = None
    inputs: list[Any] = []
    state: list[Any] = []
    changed: list[str] = msgspec.field(name="changedPropIds", default_factory=list)


class _Refused(Exception):
    """A request that Dash never sees; answered with this status and text."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        super().__init__(text)


class _Checked(msgspec.Struct, frozen=True):
    """A callback post that may reach Dash."""

    body: bytes
    callback: Mapping[str, Any]


def mount(app: dash.Dash, reader: Reader | None = None) -> ASGIRouteHandler:
    """A Litestar route handler that serves `app` (made by create_dashboard) at /dashboard/.

    Without `reader` everything runs in this process.
    """
    watch_inputs(app)

    @asgi(PREFIX.rstrip("/"), is_mount=True, copy_scope=True, name="dashboard")
    async def dashboard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            with acting_for(scope.get(SCOPE_KEY)):  # type: ignore[arg-type]
                await _serve(app, reader, scope, receive, guarded(send, app.csp_hashes))
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": "the dashboard uses no websockets"})

    return dashboard


def watch_inputs(app: dash.Dash) -> None:
    """Makes Dash answer 422 where a callback cannot make sense of its input."""
    for kind in INPUT_FAULTS:
        app.server.add_exception_handler(kind, _unusable_input)


async def _serve(app: dash.Dash, reader: Reader | None, scope: HTTPScope, receive: Receive, send: Send) -> None:
    path = scope["raw_path"].decode("latin-1").split("?", 1)[0]
    try:
        scope["path"] = _target(scope, path)
        checked = await _checked_callback(app, scope, receive) if scope["path"] == CALLBACK_PATH else None
    except _Refused as refused:
        await _answer(send, refused, as_page=_wants_page(scope, refused))
        return
    if checked is not None:
        await _run(app, reader, checked, scope, receive, send)
        return
    if reader is not None and scope["path"] == PREFIX:
        with contextlib.suppress(ReaderFailed):  # the page's first callback says so
            await reader.begin()
    await app.server(scope, receive, send)


async def _run(
    app: dash.Dash, reader: Reader | None, checked: _Checked, scope: HTTPScope, receive: Receive, send: Send
) -> None:
    """Runs a callback where it belongs."""
    if reader is not None and not runs_in_service(checked.callback):
        work = _read_elsewhere(reader, scope, checked.body, send)
    else:
        work = app.server(scope, _played(checked.body, receive), send)
    if is_for_operators(checked.callback):
        await work
        return
    with contextlib.suppress(ClientLeft):
        await unless_left(receive, work)


async def _read_elsewhere(reader: Reader, scope: HTTPScope, body: bytes, send: Send) -> None:
    """What the reader's process answers; it gets neither cookies nor keys."""
    headers = [(name, value) for name, value in scope["headers"] if name in (b"host", b"content-type")]
    try:
        answer = await reader.answer(Call(headers, body, caller()))
    except ReaderFailed as error:
        answer = problem(503, str(error))
    await _send_whole(send, answer)


def _target(scope: HTTPScope, path: str) -> str:
    """The path that Dash answers for this request; raises _Refused."""
    if path == PREFIX.rstrip("/") or parse(path) is not None:
        if scope["method"] not in ("GET", "HEAD"):
            raise _Refused(405, "Pages are read with GET.")
        # HEAD is not among Dash's routes; the server drops the body of an answer to HEAD anyway.
        scope["method"] = "GET"
        return PREFIX
    if not path.startswith((f"{PREFIX}_", f"{PREFIX}assets/")):
        raise _Refused(404, PAGE_PROBLEM)
    return urllib.parse.unquote(path)


async def _checked_callback(app: dash.Dash, scope: HTTPScope, receive: Receive) -> _Checked:
    """Reads and checks a callback post. Raises _Refused."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    origin = headers.get(b"origin")
    if origin is not None and urllib.parse.urlsplit(origin).netloc != headers.get(b"host"):
        raise _Refused(403, "The dashboard accepts changes from its own pages only.")
    if headers.get(b"content-type", "").split(";")[0].strip() != "application/json":
        raise _Refused(415, "Callbacks are posted as application/json.")
    body = await _read_body(receive)
    try:
        posted = msgspec.json.decode(body, type=CallbackBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _Refused(400, f"The callback cannot be read: {error}") from None
    callback = app.callback_map.get(posted.output)
    if callback is None:
        raise _Refused(404, "There is no such callback; reload the page.")
    if is_for_operators(callback) and not may_change():
        raise _Refused(403, NOT_ALLOWED)
    _check_shapes(posted, callback)
    return _Checked(body, callback)


def _played(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives Dash the body which was read here, and then what comes behind it."""
    played = False

    async def replay() -> HTTPRequestEvent:
        nonlocal played
        if played:
            return await receive()  # type: ignore[return-value]
        played = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _check_shapes(posted: CallbackBody, callback: Mapping[str, Any]) -> None:
    """Raises _Refused unless the post names exactly the components that the callback was registered with."""
    several = isinstance(callback["output"], list)
    outputs = [part.to_dict() for part in (callback["output"] if several else [callback["output"]])]
    for name, sent, known in (
        ("inputs", posted.inputs, callback["inputs"]),
        ("state", posted.state, callback["state"]),
        ("outputs", posted.outputs if several else [posted.outputs], outputs),
    ):
        if not isinstance(sent, list) or len(sent) != len(known) or not all(map(_fits, sent, known)):
            raise _Refused(400, f"The callback's {name} are not those of the page; reload it.")


def _fits(sent: object, known: Mapping[str, str]) -> bool:
    """Whether one posted entry is the component property `known`, or a list of those that its pattern matches."""
    component = known["id"]
    if not component.startswith("{"):
        return _is_property(sent, known) and sent["id"] == component
    pattern = json.loads(component)
    if not any(value in _MANY for value in pattern.values()):
        return _is_property(sent, known) and _matches(sent["id"], pattern)
    return isinstance(sent, list) and all(_is_property(part, known) and _matches(part["id"], pattern) for part in sent)


def _is_property(sent: object, known: Mapping[str, str]) -> TypeGuard[dict[str, Any]]:
    """Whether `sent` is an object for the property of `known`; duplicate outputs carry a hash behind an @."""
    if not isinstance(sent, dict) or not isinstance(sent.get("property"), str):
        return False
    return "id" in sent and sent["property"].split("@")[0] == known["property"].split("@")[0]


def _matches(component: object, pattern: Mapping[str, Any]) -> bool:
    """Whether an id is one of a pattern's; a wildcard, a list in the pattern, stands for any text or number."""
    return (
        isinstance(component, dict)
        and component.keys() == pattern.keys()
        and all(
            isinstance(component[key], str | int | float) if isinstance(value, list) else component[key] == value
            for key, value in pattern.items()
        )
    )


async def _unusable_input(request: Request, error: Exception) -> JSONResponse:
    """Answers 422 when a callback fails on what was posted to it; elsewhere the error stays one."""
    if request.scope["path"] != CALLBACK_PATH:
        raise error
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what = str(error)[:200]
    _log.warning("a callback could not use its input: %s: %r (%s:%s)", type(error).__name__, what, *frame[:2])
    detail = "The callback cannot use these values; reload the page."
    return JSONResponse({"title": "Unusable input", "status": 422, "detail": detail}, status_code=422)


async def _read_body(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _Refused(400, "The client went away.")
        chunks.append(message["body"])
        size += len(chunks[-1])
        if size > MAX_BODY_BYTES:
            raise _Refused(413, f"A callback may hold at most {MAX_BODY_BYTES:,} bytes.")
        if not message["more_body"]:
            return b"".join(chunks)


def _wants_page(scope: HTTPScope, refused: _Refused) -> bool:
    """Whether a person followed an address: browsers ask for HTML when they open a page, programs do not."""
    accepted = b",".join(value for name, value in scope["headers"] if name == b"accept")
    return refused.status == http.HTTPStatus.NOT_FOUND and b"text/html" in accepted


def problem(status: int, detail: str) -> Answer:
    """An answer that says what is wrong."""
    title = http.HTTPStatus(status).phrase
    body = json.dumps({"title": title, "status": status, "detail": detail}).encode()
    return Answer(status, _heads(b"application/problem+json", body), body)


def _heads(media: bytes, body: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", media), (b"content-length", str(len(body)).encode())]


async def _answer(send: Send, refused: _Refused, *, as_page: bool) -> None:
    page = NO_SUCH_PAGE.encode()
    as_html = Answer(refused.status, _heads(b"text/html; charset=utf-8", page), page)
    await _send_whole(send, as_html if as_page else problem(refused.status, refused.text))


async def _send_whole(send: Send, answer: Answer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})
