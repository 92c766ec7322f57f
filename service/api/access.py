"""What each route asks of whoever calls it, by the route that was found, never by the text of its address."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from service.credentials.caller import Caller

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
DASHBOARD = "/dashboard"
ROLE_OPTION = "access"
"""A route handler's `opt` of this name replaces the rule of its address: `opt={"access": Access.CHANGE}`."""


class Access(enum.Enum):
    """What a caller must be allowed to do."""

    OPEN = "open"
    INFER = "infer"
    READ = "read"
    CHANGE = "change"


WHO = {
    Access.INFER: "a key of the role client",
    Access.READ: "the role viewer or operator",
    Access.CHANGE: "the role operator",
}


def allows(caller: Caller, access: Access) -> bool:
    """Whether this caller may."""
    if access is Access.INFER:
        return caller.may_infer
    return access is Access.OPEN or (caller.may_read if access is Access.READ else caller.may_change)


def template_of(scope: Mapping[str, Any]) -> str:
    """The route's address with its parameters' names; of a mounted application, where it is mounted."""
    handler = scope["route_handler"]
    if getattr(handler, "is_mount", False):
        return str(min(handler.paths))
    return str(scope.get("path_template", ""))


def access_of(scope: Mapping[str, Any], *, protect_metrics: bool) -> Access:
    """What the route of this request asks for. A route that no rule knows is for operators.

    The dashboard's callbacks are posts that read; those that change something are marked, and its adapter checks them.
    """
    given = scope["route_handler"].opt.get(ROLE_OPTION)
    if isinstance(given, Access):
        return given
    template = template_of(scope)
    if template in ("/login", "/logout", "/health") or template.startswith("/health/"):
        return Access.OPEN
    if template == "/metrics":
        return Access.READ if protect_metrics else Access.OPEN
    if template.startswith("/v1/"):
        return Access.INFER
    if template == DASHBOARD:
        return Access.READ
    known = template == "/" or template.startswith(("/api/", "/schema"))
    return Access.READ if known and scope.get("method", "GET") in SAFE_METHODS else Access.CHANGE
