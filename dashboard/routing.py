"""Which page a path stands for. Paths start with PREFIX; unknown ones are answered with 404 by the adapter."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

PREFIX = "/dashboard/"
OVERVIEW_PATH = PREFIX
TIMELINE_PATH = f"{PREFIX}timeline"
REQUESTS_PATH = f"{PREFIX}requests"
COSTS_PATH = f"{PREFIX}costs"
LEARNING_PATH = f"{PREFIX}learning"
POLICY_PATH = f"{PREFIX}policy"
SQL_PATH = f"{PREFIX}sql"
MAX_REQUEST = 200
MAX_RUN = 600
_PLAN = re.compile(rf"{PREFIX}plan/([^/]{{1,600}})/([0-9]{{1,18}})/?", flags=re.ASCII)
_REQUEST = re.compile(rf"{REQUESTS_PATH}/([^/]{{1,600}})/([^/]{{1,600}})/?", flags=re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A page in the navigation, by its path; what it shows of all there is, its query says."""

    path: str
    title: str


PAGES = (
    Page(OVERVIEW_PATH, "Overview"),
    Page(TIMELINE_PATH, "Timeline"),
    Page(REQUESTS_PATH, "Requests"),
    Page(COSTS_PATH, "Costs"),
    Page(LEARNING_PATH, "Learning"),
    Page(POLICY_PATH, "Policy"),
    Page(SQL_PATH, "SQL"),
)
_BY_PATH = {page.path.rstrip("/"): page for page in PAGES}


@dataclasses.dataclass(frozen=True, slots=True)
class PlanRoute:
    """One plan."""

    run_id: str
    fence: int


@dataclasses.dataclass(frozen=True, slots=True)
class RequestRoute:
    """One request's life."""

    run_id: str
    request_id: str


Route = Page | PlanRoute | RequestRoute


def parse(pathname: str) -> Route | None:
    """The page at a URL path (percent-encoded, as a browser reports it), or None."""
    page = _BY_PATH.get(pathname.removesuffix("/"))
    if page is not None:
        return page
    if match := _PLAN.fullmatch(pathname):
        return PlanRoute(urllib.parse.unquote(match[1]), int(match[2]))
    if match := _REQUEST.fullmatch(pathname):
        return RequestRoute(urllib.parse.unquote(match[1]), urllib.parse.unquote(match[2]))
    return None


def policy_filter(search: str) -> int | None:
    """The policy version in a URL's query (`?policy=7`), or None when there is none or it cannot be read."""
    value = first(search, "policy")
    return int(value) if value is not None and re.fullmatch(r"[0-9]{1,18}", value, flags=re.ASCII) else None


def request_filter(search: str) -> str | None:
    """The request in a URL's query (`?request=req-1`), or None when there is none or it cannot be a request's id."""
    value = first(search, "request")
    return value if value is not None and value.isprintable() and len(value) <= MAX_REQUEST else None


def run_filter(search: str) -> str | None:
    """The engine run in a URL's query (`?run=20261130T…`), or None when there is none or it cannot be a run's id."""
    value = first(search, "run")
    return value if value is not None and value.isprintable() and 0 < len(value) <= MAX_RUN else None


def first(search: str, name: str) -> str | None:
    """The first value of this name in a URL's query, or None."""
    try:
        found = urllib.parse.parse_qs(search.removeprefix("?"), max_num_fields=20).get(name)
    except ValueError:  # more fields than any page makes
        return None
    return found[0] if found else None


def plan_path(run_id: str, fence: int) -> str:
    """Where a plan's page is."""
    return f"{PREFIX}plan/{urllib.parse.quote(run_id, safe='')}/{fence}"


def request_path(run_id: str, request_id: str) -> str:
    """Where a request's page is."""
    return f"{REQUESTS_PATH}/{urllib.parse.quote(run_id, safe='')}/{urllib.parse.quote(request_id, safe='')}"


def timeline_path(policy_version: int | None = None, request: str | None = None) -> str:
    """Where the timeline is, of one policy version and of one request if given."""
    return path_with(TIMELINE_PATH, policy=policy_version, request=request)


def path_with(path: str, **query: str | int | None) -> str:
    """A page's path with a query of what is not None."""
    text = urllib.parse.urlencode({name: value for name, value in query.items() if value is not None})
    return f"{path}?{text}" if text else path
