"""POST|GET /api/policy/preview and GET|DELETE /api/policy/preview/{id}: what a draft would have done."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post

from service.api.authentication import caller_of
from service.api.context import context_of
from service.api.errors import Unprocessable
from service.api.json_body import describe, parse_object
from service.api.openapi_bodies import PreviewOperation
from service.api.policy_routes import DEFAULT_ACTOR, MAX_BODY_BYTES, unknown_fields
from service.api.responses import json_response
from service.control.checks import checked_actor
from service.control.preview.asking import preview_request
from service.control.preview.messages import PreviewStatus
from service.store.filters import time_filter

AnyRequest = Request[Any, Any, Any]
PATH = "/api/policy/preview"
FIELDS = ("preset", "coefficients", "minutes", "until", "run", "sweep", "seed", "actor")
KINDS = {
    "preset": (str, "a preset's name"),
    "coefficients": (dict, "an object of names and values"),
    "until": (str, "a time such as 2026-03-01T12:00:00Z"),
}


def preview_object(status: PreviewStatus, *, whole: bool = True) -> dict[str, Any]:
    """One preview as the API shows it; without `whole` its result is left out."""
    shown: dict[str, Any] = msgspec.to_builtins(status)
    shown["ended"] = status.ended
    if not whole:
        del shown["result"]
    return shown


@post(PATH, status_code=202, request_max_body_size=MAX_BODY_BYTES, operation_class=PreviewOperation, tags=["policy"])
async def start_preview(request: AnyRequest) -> Response[bytes]:
    """Replay recorded traffic under the policy in force and under a draft; Location is where to ask for the result."""
    body = parse_object(await request.body())
    problems = unknown_fields(body, FIELDS)
    for name, (kind, words) in KINDS.items():
        if body.get(name) is not None and not isinstance(body[name], kind):
            problems[name] = f"must be {words}, not {describe(body[name])}"
    if problems:
        raise Unprocessable(problems)
    context, caller = context_of(request), caller_of(request.scope)
    by = checked_actor(body.get("actor") or DEFAULT_ACTOR) if caller is None else caller.name
    current = await context.control.current()
    wanted = preview_request(
        current.config,
        current.version,
        preset=body.get("preset"),
        coefficients=body.get("coefficients"),
        minutes=body.get("minutes"),
        until=time_filter("until", body.get("until")),
        run_id=body.get("run"),
        sweep=body.get("sweep"),
        seed=body.get("seed"),
    )
    status = await context.previews.start(wanted, by)
    return json_response(preview_object(status), status=202, headers={"Location": f"{PATH}/{status.id}"})


@get(PATH, tags=["policy"])
async def list_previews(request: AnyRequest) -> Response[bytes]:
    """The kept previews, newest first, without their results."""
    kept = await context_of(request).previews.kept()
    return json_response({"items": [preview_object(status, whole=False) for status in kept], "next": None})


@get(PATH + "/{preview_id:str}", tags=["policy"])
async def get_preview(request: AnyRequest) -> Response[bytes]:
    """How far a preview is; its result once its state is done."""
    return json_response(preview_object(await context_of(request).previews.status(request.path_params["preview_id"])))


@delete(PATH + "/{preview_id:str}", status_code=200, tags=["policy"])
async def cancel_preview(request: AnyRequest) -> Response[bytes]:
    """Ends a preview that has not ended; answers with what it is then."""
    return json_response(preview_object(await context_of(request).previews.cancel(request.path_params["preview_id"])))
