"""GET|PUT /api/policy, GET /api/policy/history and POST /api/policy/rollback."""

from __future__ import annotations

import re
from typing import Any

from litestar import Request, Response, get, post, put

from service.api.authentication import caller_of
from service.api.context import context_of
from service.api.errors import BadRequest, PreconditionRequired, Unprocessable
from service.api.json_body import describe, parse_object, shown
from service.api.openapi_bodies import PolicyOperation, RollbackOperation
from service.api.responses import json_response
from service.api.trace_routes import filters_of, whole_number
from service.control.checks import MAX_ACTOR, MAX_NOTE
from service.control.fit import misfit
from service.control.policy import PolicyVersion

AnyRequest = Request[Any, Any, Any]
DEFAULT_ACTOR = "api"
MAX_HISTORY = 1_000
MAX_BODY_BYTES = 64 << 10
MAX_FIELDS_SHOWN = 8
_READ_FIRST = 'Read GET /api/policy and send its version, for example If-Match: "3".'


def policy_object(version: PolicyVersion) -> dict[str, Any]:
    """One version as the API shows it."""
    return {
        "version": version.version,
        "preset": version.preset,
        "coefficients": version.config.as_dict(),
        "created_at": version.created_at,
        "applied_at": version.applied_at,
        "state": version.state,
        "actor": version.actor,
        "note": version.note,
        "parent_version": version.parent_version,
    }


def _answer(request: AnyRequest, version: PolicyVersion) -> Response[bytes]:
    """The version in force, and what it lacks on this server."""
    found = misfit(version.config, mixed_prefill=context_of(request).settings.mixed_prefill)
    body = {**policy_object(version), "warnings": [] if found is None else [found]}
    return json_response(body, headers={"ETag": f'"{version.version}"', "Cache-Control": "no-cache"})


def expected_version(request: AnyRequest) -> int:
    """The version in If-Match. Raises PreconditionRequired without one, BadRequest for anything but one version."""
    headers = request.headers.getall("if-match", [])
    if not headers:
        raise PreconditionRequired(f"A change needs the version that it is based on. {_READ_FIRST}")
    header = ", ".join(headers)  # several headers mean one list
    match = re.fullmatch(r'\s*"(0|[1-9]\d{0,17})"\s*', header, flags=re.ASCII)
    if match is None:
        raise BadRequest(f"If-Match must be one quoted version, not {shown(header)!r}. {_READ_FIRST}", "If-Match")
    return int(match[1])


def who_and_why(request: AnyRequest, body: dict[str, Any], problems: dict[str, str]) -> tuple[str, str]:
    """Actor and note; what is wrong with them goes to `problems`. Whoever signed in acts under their own name."""
    values = {"actor": DEFAULT_ACTOR, "note": ""}
    for name, longest in (("actor", MAX_ACTOR), ("note", MAX_NOTE)):
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or len(value) > longest or "\0" in value:
            problems[name] = f"must be text of at most {longest:,} characters, not {describe(value)}"
        elif value.strip():
            values[name] = value.strip()
    caller = caller_of(request.scope)
    return values["actor"] if caller is None else caller.name, values["note"]


def unknown_fields(body: dict[str, Any], known: tuple[str, ...]) -> dict[str, str]:
    """The problems of fields that the body has and that are not among `known`; the first few by name."""
    names = [name for name in body if name not in known]
    why = f"no such field; the fields are {', '.join(known)}"
    problems = {shown(name): why for name in names[:MAX_FIELDS_SHOWN]}
    if len(names) > MAX_FIELDS_SHOWN:
        problems["…"] = f"and {len(names) - MAX_FIELDS_SHOWN:,} more that are no fields"
    return problems


@get("/api/policy", tags=["policy"])
async def get_policy(request: AnyRequest) -> Response[bytes]:
    """The policy in force; its ETag is what a change sends as If-Match."""
    return _answer(request, await context_of(request).control.current())


def wanted_values(body: dict[str, Any], problems: dict[str, str]) -> dict[str, Any]:
    """`preset`, `coefficients` and `end_guard` of a change; what is wrong with them goes to `problems`."""
    preset, coefficients, end_guard = (body.get(name) for name in ("preset", "coefficients", "end_guard"))
    if preset is not None and not isinstance(preset, str):
        problems["preset"] = f"must be a preset's name, not {describe(preset)}"
    if coefficients is not None and not isinstance(coefficients, dict):
        problems["coefficients"] = f"must be an object of names and values, not {describe(coefficients)}"
    if end_guard is not None and not isinstance(end_guard, bool):
        problems["end_guard"] = f"must be true or false, not {describe(end_guard)}"
    return {"preset": preset, "coefficients": coefficients or {}, "end_guard": end_guard is True}


@put("/api/policy", request_max_body_size=MAX_BODY_BYTES, operation_class=PolicyOperation, tags=["policy"])
async def put_policy(request: AnyRequest) -> Response[bytes]:
    """Merge `{"preset"?, "coefficients"?, "actor"?, "note"?}`; answers once the engine uses the new version.

    While a guard watches the version in force, `"end_guard": true` is needed too.
    """
    expected = expected_version(request)
    body = parse_object(await request.body())
    problems = unknown_fields(body, ("preset", "coefficients", "end_guard", "actor", "note"))
    wanted = wanted_values(body, problems)
    actor, note = who_and_why(request, body, problems)
    if problems:
        raise Unprocessable(problems)
    control = context_of(request).control
    version = await control.change(expected_version=expected, **wanted, actor=actor, note=note)
    return _answer(request, version)


@get("/api/policy/history", tags=["policy"])
async def get_history(request: AnyRequest) -> Response[bytes]:
    """Versions, newest first. Filter: limit (100 by default)."""
    limit = whole_number("limit", filters_of(request, ("limit",)).get("limit", "100"))
    if not 1 <= limit <= MAX_HISTORY:
        raise BadRequest(f"limit must be from 1 to {MAX_HISTORY:,}, not {limit:,}.", "limit")
    versions = await context_of(request).control.history(limit)
    return json_response({"items": [policy_object(version) for version in versions], "next": None})


@post(
    "/api/policy/rollback",
    status_code=200,
    request_max_body_size=MAX_BODY_BYTES,
    operation_class=RollbackOperation,
    tags=["policy"],
)
async def rollback(request: AnyRequest) -> Response[bytes]:
    """A new version with the values of `{"to_version"?}`, by default of the version before the current one."""
    expected = expected_version(request)
    data = await request.body()
    body = parse_object(data) if data else {}
    problems = unknown_fields(body, ("to_version", "actor", "note"))
    target = body.get("to_version")
    if target is not None and (isinstance(target, bool) or not isinstance(target, int) or not 1 <= target < 2**63):
        problems["to_version"] = f"must be the number of a version, not {describe(target)}"
    actor, note = who_and_why(request, body, problems)
    if problems:
        raise Unprocessable(problems)
    version = await context_of(request).control.rollback(
        expected_version=expected, to_version=target, actor=actor, note=note
    )
    return _answer(request, version)
