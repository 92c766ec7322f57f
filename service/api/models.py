"""GET /v1/models and POST /v1/tokenize."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get, post
from litestar.params import FromPath

from service.api.chat_request import read_messages
from service.api.completion_request import read_prompt
from service.api.context import ApiContext, context_of
from service.api.errors import BadRequest
from service.api.inference import check_model
from service.api.json_body import check_names, parse_object, text
from service.api.openapi_bodies import TokenizeOperation
from service.api.prompts import context_limit, tokenize_bound, tokenize_chat, tokenize_prompt
from service.api.responses import json_response


def _model(context: ApiContext) -> dict[str, Any]:
    ready = context.engine.ready
    return {
        "id": context.text_model.name,
        "object": "model",
        "created": context.text_model.created,
        "owned_by": "helios",
        "max_model_len": None if ready is None else context_limit(ready),
    }


@get("/v1/models", tags=["inference"])
async def list_models(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The model that is served; max_model_len is its context in tokens, null until the engine is ready."""
    return json_response({"object": "list", "data": [_model(context_of(request))]})


@get("/v1/models/{model:path}", tags=["inference"])
async def get_model(request: Request[Any, Any, Any], model: FromPath[str]) -> Response[bytes]:
    """One model."""
    context = context_of(request)
    check_model(context, model.removeprefix("/"))
    return json_response(_model(context))


@post("/v1/tokenize", status_code=200, operation_class=TokenizeOperation, tags=["inference"])
async def tokenize(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Token ids of `{"prompt": …}` or `{"messages": […]}`, exactly as a completion or chat would send them.

    Texts of at most 256 KiB.
    """
    context = context_of(request)
    body = parse_object(await request.body())
    check_names(body, {"model", "prompt", "messages"})
    if (name := text(body, "model", 512)) is not None:
        check_model(context, name)
    if ("prompt" in body) == ("messages" in body):
        raise BadRequest("Send either prompt or messages.", "prompt")
    if "messages" in body:
        ids, _ = await tokenize_chat(context, read_messages(body), tokenize_bound)
    else:
        prompt = read_prompt(body["prompt"], context.text_model.vocab_size)
        ids, _ = await tokenize_prompt(context, prompt, tokenize_bound)
    ready = context.engine.ready
    limit = None if ready is None else context_limit(ready)
    return json_response({"model": context.text_model.name, "tokens": ids, "count": len(ids), "max_model_len": limit})
