"""Refuses what a browser page of another origin asks for, with a credential or without: browsers send cookies along.

Programs send no Origin and may change things. A page may when its Origin is the address it talks to (the Host
header). Other origins cannot read, since no CORS headers are sent, unless their own name leads here: a public name
that resolves to 127.0.0.1 is how DNS rebinding works. So a server that listens on loopback only answers, to reads
too, under loopback names only. Health and metrics answer under every name: whatever probes them may use any.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.parse

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from service.api.errors import BadRequest, CrossOrigin

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+;=-]+)(:(?P<port>[0-9]{0,5}))?", re.ASCII)
_MAX_PORT = 65_535
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


def check_host(headers: Headers, *, loopback_only: bool) -> None:
    """Raises BadRequest for a Host header that is no host, CrossOrigin for one that is not this machine.

    Browsers always send one; a request without any is a program's.
    """
    hosts = headers.getall("host", [])
    if not hosts:
        return
    name = _host_name(hosts[0])
    if len(hosts) > 1 or name is None:
        raise BadRequest("The Host header must be one host name or address, with a port or without.", "Host")
    if loopback_only and not is_loopback(name):
        raise CrossOrigin("This server listens on loopback only; open it as http://localhost or http://127.0.0.1.")


def _host_name(host: str) -> str | None:
    """The name in a Host header, without its port; None when it is not one."""
    match = _HOST.fullmatch(host)
    if match is None or int(match["port"] or 0) > _MAX_PORT:
        return None
    try:
        return urllib.parse.urlsplit(f"//{host}").hostname
    except ValueError:  # brackets around what is no IPv6 address
        return None


def check_origin(headers: Headers) -> None:
    """Raises CrossOrigin for a request whose page is of another origin. The Host header is checked already."""
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
    except ValueError:
        same = False
    if not same:
        raise CrossOrigin(f"A page of {origin[:200]} may not change anything here; open this server's own page.")


class OriginGuard(ASGIMiddleware):
    """Checks the host of every request, and the origin of those that can change something and of websockets."""

    def __init__(self, *, loopback_only: bool) -> None:
        self._loopback_only = loopback_only

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        headers = Headers.from_scope(scope)
        if scope["type"] == ScopeType.HTTP:
            probed = scope["path"] in ("/metrics", "/health") or scope["path"].startswith("/health/")
            check_host(headers, loopback_only=self._loopback_only and not probed)
            if scope["method"] not in _SAFE_METHODS:
                check_origin(headers)
        else:
            try:
                check_host(headers, loopback_only=self._loopback_only)
                check_origin(headers)
            except (BadRequest, CrossOrigin):
                await send({"type": "websocket.close", "code": 1008, "reason": "cross-origin"})
                return
        await next_app(scope, receive, send)
