"""GET|POST|DELETE /api/policy/guard: a change of the policy on trial."""

from __future__ import annotations

from typing import Any

from litestar import Response, delete, get, post

from service.api.context import context_of
from service.api.errors import BadRequest, Unprocessable
from service.api.json_body import parse_object
from service.api.openapi_bodies import GuardOperation
from service.api.policy_routes import (
    MAX_BODY_BYTES,
    AnyRequest,
    expected_version,
    unknown_fields,
    wanted_values,
    who_and_why,
)
from service.api.responses import json_response
from service.api.trace_routes import filters_of, whole_number
from service.control.guards import DEFAULT_MINUTES, Guard, GuardControl, limits_from

FIELDS = ("preset", "coefficients", "end_guard", "actor", "note", "minutes", "limits")
MOST_LISTED = 100
_PATH = "/api/policy/guard"


def guard_object(guard: Guard) -> dict[str, Any]:
    """One guard as the API shows it, with the evidence so far; names are those of the columns."""
    return {
        "version": guard.version,
        "parent_version": guard.parent,
        "state": guard.state,
        "actor": guard.actor,
        "minutes": guard.minutes,
        "limits": guard.limits.as_dict(),
        "opened_at": guard.opened_at,
        "ends_at": guard.until,
        "decided_at": guard.decided_at,
        "reason": guard.reason,
        "evidence": guard.evidence.as_dict(),
    }


@get(_PATH, tags=["policy"])
async def get_guard(request: AnyRequest) -> Response[bytes]:
    """`watching`: the guard that watches, or null; `items`: the last ones, newest first. Filter: limit (20)."""
    limit = whole_number("limit", filters_of(request, ("limit",)).get("limit", "20"))
    if not 1 <= limit <= MOST_LISTED:
        raise BadRequest(f"limit must be from 1 to {MOST_LISTED}, not {limit:,}.", "limit")
    guards = GuardControl(context_of(request).control)
    watching, listed = await guards.current(), await guards.history(limit)
    return json_response(
        {
            "watching": None if watching is None else guard_object(watching),
            "items": [guard_object(guard) for guard in listed],
            "next": None,
        },
        headers={"Cache-Control": "no-cache"},
    )


@post(
    _PATH, status_code=201, request_max_body_size=MAX_BODY_BYTES, operation_class=GuardOperation, tags=["policy"]
)  # fmt: skip
async def open_guard(request: AnyRequest) -> Response[bytes]:
    """A change like PUT /api/policy, watched for `minutes` by `limits`; answers once the engine uses it."""
    expected = expected_version(request)
    body = parse_object(await request.body())
    problems = unknown_fields(body, FIELDS)
    wanted = wanted_values(body, problems)
    actor, note = who_and_why(request, body, problems)
    if problems:
        raise Unprocessable(problems)
    minutes, limits = body.get("minutes"), body.get("limits")
    guard = await GuardControl(context_of(request).control).open(
        expected_version=expected,
        minutes=DEFAULT_MINUTES if minutes is None else minutes,
        limits=None if limits is None else limits_from(limits),
        **wanted,
        actor=actor,
        note=note,
    )
    return json_response(guard_object(guard), status=201, headers={"ETag": f'"{guard.version}"'})


@delete(_PATH, status_code=200, tags=["policy"])
async def end_guard(request: AnyRequest) -> Response[bytes]:
    """Ends the guard of the version in If-Match and keeps it or, with `?rollback=true`, takes it back.

    Filters: rollback, actor, note.
    """
    expected = expected_version(request)
    given = filters_of(request, ("rollback", "actor", "note"))
    problems: dict[str, str] = {}
    actor, note = who_and_why(request, given, problems)
    if problems:
        raise Unprocessable(problems)
    rollback = given.get("rollback", "false")
    if rollback not in ("true", "false"):
        raise BadRequest("rollback must be true or false.", "rollback")
    guards = GuardControl(context_of(request).control)
    guard = await guards.end(expected_version=expected, rollback=rollback == "true", actor=actor, note=note)
    return json_response(guard_object(guard))
