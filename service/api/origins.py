"""Refuses changes that a browser page of another origin asks for, since there are no credentials yet.

Programs send no Origin and pass. A page passes when its Origin is the address it talks to (the Host header) and,
on a server that listens on loopback only, when that address is a loopback name: a public name that resolves to
127.0.0.1 is how DNS rebinding works. Reading is not restricted: without CORS headers other origins cannot read.
"""

from __future__ import annotations

import ipaddress
import urllib.parse

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from service.api.errors import CrossOrigin

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def is_loopback(host: str) -> bool:
    """Whether a host name or address (without port) means this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_origin(headers: Headers, *, loopback_only: bool) -> None:
    """Raises CrossOrigin for a request whose page is of another origin."""
    origin = headers.get("origin")
    if origin is None:
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise CrossOrigin("This change comes from a page of another site; open this server's own page.")
        return
    host = headers.get("host", "")
    try:
        page = urllib.parse.urlsplit(origin)
        here = urllib.parse.urlsplit(f"{page.scheme}://{host}")
        same = page.hostname is not None and (page.hostname, page.port) == (here.hostname, here.port)
        name = here.hostname or ""
    except ValueError:
        same, name = False, ""
    if not same:
        raise CrossOrigin(f"A page of {origin[:200]} may not change anything here; open this server's own page.")
    if loopback_only and not is_loopback(name):
        raise CrossOrigin("This server listens on loopback only; open it as http://localhost or http://127.0.0.1.")


class OriginGuard(ASGIMiddleware):
    """Applies check_origin to every request that can change something, and to websocket handshakes."""

    def __init__(self, *, loopback_only: bool) -> None:
        self._loopback_only = loopback_only

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        if scope["type"] == ScopeType.HTTP:
            if scope["method"] not in _SAFE_METHODS:
                check_origin(Headers.from_scope(scope), loopback_only=self._loopback_only)
        else:
            try:
                check_origin(Headers.from_scope(scope), loopback_only=self._loopback_only)
            except CrossOrigin:
                await send({"type": "websocket.close", "code": 1008, "reason": "cross-origin"})
                return
        await next_app(scope, receive, send)
