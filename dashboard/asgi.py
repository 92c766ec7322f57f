"""The one place where Dash meets Litestar: an ASGI mount at /dashboard/.

Dash has no Litestar backend, so its FastAPI application is mounted. What the seam needs:
- Litestar strips the mount's prefix and adds a slash; the path is restored from `raw_path`.
- The mount also matches `/dashboardfoo`; that is refused.
- Mounts get no lifespan events, so Dash never sets up its catch-all route. Page addresses are known (routing.parse)
  and are answered with the index page here; every other unknown path stays a 404.
- Dash runs any callback for anyone who posts JSON. Other sites' posts, oversized or unreadable bodies and unknown
  callbacks are refused before they reach it.
- Websocket callbacks are not used; a websocket is closed during its handshake (HTTP 403).
"""

from __future__ import annotations

import http
import json
import urllib.parse

import dash
import msgspec
from litestar.enums import ScopeType
from litestar.handlers import ASGIRouteHandler, asgi
from litestar.types import HTTPRequestEvent, Receive, Scope, Send
from litestar.types.asgi_types import HTTPScope

from dashboard.routing import PREFIX, parse

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
<p><a href="{PREFIX}">Go to the timeline</a></p>
</body>
</html>
"""


class CallbackBody(msgspec.Struct):
    """The part of a callback post that is checked here."""

    output: str


class _Refused(Exception):
    """A request that Dash never sees; answered with this status and text."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        super().__init__(text)


def mount(app: dash.Dash) -> ASGIRouteHandler:
    """A Litestar route handler that serves `app` (made by create_dashboard) at /dashboard/."""

    @asgi(PREFIX.rstrip("/"), is_mount=True, copy_scope=True, name="dashboard")
    async def dashboard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            await _serve(app, scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": "the dashboard uses no websockets"})

    return dashboard


async def _serve(app: dash.Dash, scope: HTTPScope, receive: Receive, send: Send) -> None:
    path = scope["raw_path"].decode("latin-1").split("?", 1)[0]
    try:
        target = _target(scope, path)
        if target == CALLBACK_PATH:
            receive = await _checked_callback(app, scope, receive)
    except _Refused as refused:
        await _answer(send, refused, as_page=_wants_page(scope, refused))
        return
    scope["path"] = target
    await app.server(scope, receive, send)


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


async def _checked_callback(app: dash.Dash, scope: HTTPScope, receive: Receive) -> Receive:
    """Reads and checks a callback post; returns a `receive` that plays it to Dash. Raises _Refused."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    origin = headers.get(b"origin")
    if origin is not None and urllib.parse.urlsplit(origin).netloc != headers.get(b"host"):
        raise _Refused(403, "The dashboard accepts changes from its own pages only.")
    if headers.get(b"content-type", "").split(";")[0].strip() != "application/json":
        raise _Refused(415, "Callbacks are posted as application/json.")
    body = await _read_body(receive)
    try:
        output = msgspec.json.decode(body, type=CallbackBody).output
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _Refused(400, f"The callback cannot be read: {error}") from None
    if output not in app.callback_map:
        raise _Refused(404, "There is no such callback; reload the page.")
    played = False

    async def replay() -> HTTPRequestEvent:
        nonlocal played
        if played:
            return await receive()  # type: ignore[return-value]
        played = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


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


async def _answer(send: Send, refused: _Refused, *, as_page: bool) -> None:
    if as_page:
        body, media = NO_SUCH_PAGE.encode(), b"text/html; charset=utf-8"
    else:
        title = http.HTTPStatus(refused.status).phrase
        body = json.dumps({"title": title, "status": refused.status, "detail": refused.text}).encode()
        media = b"application/problem+json"
    headers = [(b"content-type", media), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
