"""GET /api/plans, /api/requests and /api/runs: the trace store as JSON, keys are the SQL column names."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from litestar import Request, Response, get
from litestar.params import FromPath

from service.api.context import context_of
from service.api.errors import BadRequest, NotFound
from service.api.json_body import shown
from service.api.responses import json_response
from service.store import queries

AnyRequest = Request[Any, Any, Any]
PLAN_FILTERS = ("since", "until", "kind", "reason", "shape", "request", "run", "outcome", "limit", "cursor")
REQUEST_FILTERS = ("since", "until", "run", "request", "finish_reason", "limit", "cursor")


def filters_of(request: AnyRequest, known: Collection[str]) -> dict[str, str]:
    """The query string as filters; raises BadRequest for an unknown or repeated one."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise BadRequest(f"Unknown filter {shown(name)!r}; the filters are {', '.join(known)}.", shown(name))
        if name in found:
            raise BadRequest(f"The filter {name} is given twice; give it once.", name)
        found[name] = value
    return found


def whole_number(name: str, text: str) -> int:
    """A decimal number from 0 to 2**63-1."""
    if not re.fullmatch(r"\d{1,19}", text, flags=re.ASCII) or int(text) >= 2**63:
        raise BadRequest(f"{name} must be a whole number below 2**63, not {shown(text)!r}.", name)
    return int(text)


def _page(page: queries.Page) -> Response[bytes]:
    return json_response({"items": page.items, "next": page.next})


@get("/api/plans", tags=["trace"])
async def list_plans(request: AnyRequest) -> Response[bytes]:
    """Plans, newest first. Filters: since, until, kind, reason, shape (decode:B4), request, run, outcome,
    policy_version, limit (to 1,000), cursor.
    """
    found: dict[str, Any] = filters_of(request, (*PLAN_FILTERS, "policy_version"))
    if "policy_version" in found:
        found["policy_version"] = whole_number("policy_version", found["policy_version"])
    context = context_of(request)
    return _page(await context.read_store(queries.list_plans, **found))


@get("/api/plans/{run:str}/{fence:str}", tags=["trace"])
async def get_plan(request: AnyRequest, run: FromPath[str], fence: FromPath[str]) -> Response[bytes]:
    """One plan with its lanes and runner-ups; episode is null where no exploration paid for it."""
    context = context_of(request)
    detail = await context.read_store(queries.get_plan, run, whole_number("fence", fence))
    if detail is None:
        raise NotFound(f"There is no plan {shown(run)}/{fence}; GET /api/plans lists them.")
    return json_response(detail)


@get("/api/requests", tags=["trace"])
async def list_requests(request: AnyRequest) -> Response[bytes]:
    """Requests by arrival, newest first. Filters: since, until, run, request, finish_reason, limit, cursor."""
    found: dict[str, Any] = filters_of(request, REQUEST_FILTERS)
    context = context_of(request)
    return _page(await context.read_store(queries.list_requests, **found))


@get("/api/requests/{run:str}/{request_id:str}", tags=["trace"])
async def get_request(request: AnyRequest, run: FromPath[str], request_id: FromPath[str]) -> Response[bytes]:
    """One request's row."""
    context = context_of(request)
    row = await context.read_store(queries.get_request, run, request_id)
    if row is None:
        raise NotFound(f"There is no request {shown(run)}/{shown(request_id)}; GET /api/requests lists them.")
    return json_response(row)


@get("/api/runs", tags=["trace"])
async def list_runs(request: AnyRequest) -> Response[bytes]:
    """Engine runs, newest first. Filter: limit."""
    context = context_of(request)
    found: dict[str, Any] = filters_of(request, ("limit",))
    return json_response({"items": await context.read_store(queries.list_runs, **found), "next": None})
