"""Which page a path stands for. Paths start with PREFIX; unknown ones are answered with 404 by the adapter."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

PREFIX = "/dashboard/"
TIMELINE_PATH = PREFIX
POLICY_PATH = f"{PREFIX}policy"
MAX_REQUEST = 200
_PLAN = re.compile(rf"{PREFIX}plan/([^/]{{1,600}})/([0-9]{{1,18}})/?", flags=re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class TimelineRoute:
    """The timeline, of all plans, of those chosen under one policy version, or of those of one request."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlanRoute:
    """One plan."""

    run_id: str
    fence: int


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyRoute:
    """The policy form and its history."""


Route = TimelineRoute | PlanRoute | PolicyRoute


def parse(pathname: str) -> Route | None:
    """The page at a URL path (percent-encoded, as a browser reports it), or None."""
    if pathname in (TIMELINE_PATH, TIMELINE_PATH.rstrip("/")):
        return TimelineRoute()
    if pathname.rstrip("/") == POLICY_PATH:
        return PolicyRoute()
    match = _PLAN.fullmatch(pathname)
    return None if match is None else PlanRoute(urllib.parse.unquote(match[1]), int(match[2]))


def policy_filter(search: str) -> int | None:
    """The policy version in a URL's query (`?policy=7`), or None when there is none or it cannot be read."""
    value = _first(search, "policy")
    return int(value) if value is not None and re.fullmatch(r"[0-9]{1,18}", value, flags=re.ASCII) else None


def request_filter(search: str) -> str | None:
    """The request in a URL's query (`?request=req-1`), or None when there is none or it cannot be a request's id."""
    value = _first(search, "request")
    return value if value is not None and value.isprintable() and len(value) <= MAX_REQUEST else None


def _first(search: str, name: str) -> str | None:
    try:
        found = urllib.parse.parse_qs(search.removeprefix("?"), max_num_fields=20).get(name)
    except ValueError:  # more fields than any page makes
        return None
    return found[0] if found else None


def plan_path(run_id: str, fence: int) -> str:
    """Where a plan's page is."""
    return f"{PREFIX}plan/{urllib.parse.quote(run_id, safe='')}/{fence}"


def timeline_path(policy_version: int | None = None, request: str | None = None) -> str:
    """Where the timeline is, of one policy version and of one request if given."""
    chosen = {"policy": policy_version, "request": request}
    query = urllib.parse.urlencode({name: value for name, value in chosen.items() if value is not None})
    return f"{TIMELINE_PATH}?{query}" if query else TIMELINE_PATH
