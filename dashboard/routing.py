"""Which page a path stands for. Paths start with PREFIX; unknown ones are answered with 404 by the adapter."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

PREFIX = "/dashboard/"
TIMELINE_PATH = PREFIX
POLICY_PATH = f"{PREFIX}policy"
_PLAN = re.compile(rf"{PREFIX}plan/([^/]{{1,600}})/([0-9]{{1,18}})/?", flags=re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class TimelineRoute:
    """The timeline, of all plans or of those chosen under one policy version."""


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
    values = urllib.parse.parse_qs(search.removeprefix("?"), max_num_fields=20).get("policy", []) if search else []
    return int(values[0]) if values and re.fullmatch(r"[0-9]{1,18}", values[0], flags=re.ASCII) else None


def plan_path(run_id: str, fence: int) -> str:
    """Where a plan's page is."""
    return f"{PREFIX}plan/{urllib.parse.quote(run_id, safe='')}/{fence}"


def timeline_path(policy_version: int | None = None) -> str:
    """Where the timeline is, of one policy version if given."""
    return TIMELINE_PATH if policy_version is None else f"{TIMELINE_PATH}?policy={policy_version}"
