"""Asks every request for a credential whose role allows what its route does. Installed with `--credentials-file`.

The credential goes into the scope as a Caller, which the routes and the dashboard read. A browser that opens a page
without one is led to /login. What a session's cookie changes must come from a page of this server, and say so: a
cookie is sent by the browser whoever set the request in motion.
"""

from __future__ import annotations

import html
import urllib.parse
from collections.abc import Mapping
from typing import Any

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from service.api.access import DASHBOARD, SAFE_METHODS, WHO, Access, access_of, allows, template_of
from service.api.errors import BadRequest, CrossOrigin, Forbidden, TooManyFailures, Unauthenticated
from service.api.gate import Gate
from service.credentials.caller import SCOPE_KEY, Caller
from service.credentials.keys import KEY_IN_TEXT

KEY_IN_ADDRESS = (
    "A key does not belong in an address: logs and histories keep it. Send it as Authorization: Bearer KEY, and revoke "
    "this one (helios keys revoke)."
)
NOT_FROM_HERE = "A signed-in browser changes something only from a page of this server."
_ARRIVED = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Helios</title>
<meta http-equiv="refresh" content="0;url=%s"></head><body><a href="%s">Go on</a></body></html>
"""


def caller_of(scope: Mapping[str, Any]) -> Caller | None:
    """Who the request comes from; None where no credentials are asked for, or the route is open."""
    found = scope.get(SCOPE_KEY)
    return found if isinstance(found, Caller) else None


class Authentication(ASGIMiddleware):
    """Lets a request through when its credential's role allows what the route does."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        headers = Headers.from_scope(scope)
        if scope["type"] != ScopeType.HTTP:
            try:
                self._admit(scope, headers)
            except (BadRequest, CrossOrigin, Forbidden, TooManyFailures, Unauthenticated):
                await send({"type": "websocket.close", "code": 1008, "reason": "no credential"})
                return
            await next_app(scope, receive, send)
            return
        try:
            self._admit(scope, headers)
        except Unauthenticated:
            if not _is_page(scope, headers):
                raise
            await _lead_to_login(scope, headers, send)
            return
        await next_app(scope, receive, send)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        """Puts the caller into the scope. Raises what the caller is told when it may not do this."""
        if KEY_IN_TEXT.search(scope["raw_path"]) or KEY_IN_TEXT.search(scope["query_string"]):
            raise BadRequest(KEY_IN_ADDRESS, code="key_in_address")
        access = access_of(scope, protect_metrics=self._gate.protect_metrics)
        if access is Access.OPEN:
            return
        client = scope.get("client")
        caller, by_session = self._gate.caller(headers, client[0] if client else "unknown")
        if not allows(caller, access):
            raise Forbidden(f"This needs {WHO[access]}; {caller.name} has the role {caller.role}.")
        if by_session and scope.get("method", "") not in SAFE_METHODS:
            _check_session_origin(headers)
        scope[SCOPE_KEY] = caller  # type: ignore[literal-required]


def _check_session_origin(headers: Headers) -> None:
    """Raises CrossOrigin unless the browser says where the request comes from; OriginGuard compares an Origin."""
    if headers.get("origin") is None and headers.get("sec-fetch-site") != "same-origin":
        raise CrossOrigin(NOT_FROM_HERE)


def _is_page(scope: Scope, headers: Headers) -> bool:
    """Whether a person opened an address: browsers ask for HTML then, and their scripts do not."""
    return (
        scope.get("method") in ("GET", "HEAD")
        and template_of(scope) in ("/", DASHBOARD)
        and "text/html" in headers.get("accept", "")
    )


async def _lead_to_login(scope: Scope, headers: Headers, send: Send) -> None:
    """To /login and back, or once more to the same page.

    A browser keeps a strict cookie back when a link of another site, such as a colleague's message, leads here. So the
    first answer to that only asks for the page again; a browser that is signed in sends its cookie then.
    """
    address = scope["raw_path"].split(b"?", 1)[0].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    here = f"{address}?{query}" if query else address
    fields = [(b"cache-control", b"no-store")]
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        there = html.escape(urllib.parse.quote(here, safe="/?&=%:+,;@!~*'()$-._")).encode()
        body = _ARRIVED % (there, there)
        fields += [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": body, "more_body": False})
        return
    where = f"/login?{urllib.parse.urlencode({'next': here})}".encode()
    await send({"type": "http.response.start", "status": 303, "headers": [*fields, (b"location", where)]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
