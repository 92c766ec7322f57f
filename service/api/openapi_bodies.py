"""What GET /schema says about request bodies. The checks themselves are in the readers; a test compares names."""

from __future__ import annotations

import dataclasses

from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema

_INTEGER, _NUMBER = Schema(type=OpenAPIType.INTEGER), Schema(type=OpenAPIType.NUMBER)
_TEXT, _FLAG = Schema(type=OpenAPIType.STRING), Schema(type=OpenAPIType.BOOLEAN)
_OBJECT = Schema(type=OpenAPIType.OBJECT)
_TOKENS = Schema(type=OpenAPIType.INTEGER, minimum=1)
_STOP = Schema(one_of=[_TEXT, Schema(type=OpenAPIType.ARRAY, items=_TEXT, max_items=4)])
_PROMPT = Schema(
    one_of=[_TEXT, Schema(type=OpenAPIType.ARRAY, items=_INTEGER, description="token ids")],
    description="one prompt; an array of one prompt is taken too",
)
_MESSAGE = Schema(
    type=OpenAPIType.OBJECT,
    required=["role", "content"],
    properties={
        "role": Schema(type=OpenAPIType.STRING, enum=["system", "developer", "user", "assistant"]),
        "content": Schema(one_of=[_TEXT, Schema(type=OpenAPIType.ARRAY, items=_OBJECT, description="text parts")]),
    },
)
_MESSAGES = Schema(type=OpenAPIType.ARRAY, items=_MESSAGE, min_items=1)
_OPTIONS = {
    "model": _TEXT,
    "max_tokens": _TOKENS,
    "temperature": Schema(type=OpenAPIType.NUMBER, minimum=0, maximum=2, default=1),
    "top_p": Schema(type=OpenAPIType.NUMBER, exclusive_minimum=0, maximum=1, default=1),
    "seed": _INTEGER,
    "stop": _STOP,
    "stream": Schema(type=OpenAPIType.BOOLEAN, default=False),
    "stream_options": Schema(type=OpenAPIType.OBJECT, properties={"include_usage": _FLAG}),
    "user": _TEXT,
    "metadata": _OBJECT,
    "store": Schema(type=OpenAPIType.BOOLEAN, enum=[False]),
}
_WHO = {"actor": _TEXT, "note": _TEXT}


def _json(required: list[str], properties: dict[str, Schema]) -> RequestBody:
    schema = Schema(type=OpenAPIType.OBJECT, required=required or None, properties=dict(properties))
    return RequestBody(content={"application/json": OpenAPIMediaType(schema=schema)}, required=bool(required))


@dataclasses.dataclass
class ChatOperation(Operation):
    """POST /v1/chat/completions."""

    def __post_init__(self) -> None:
        newer = {"messages": _MESSAGES, "max_completion_tokens": _TOKENS}
        self.request_body = _json(["model", "messages"], {**newer, **_OPTIONS})


@dataclasses.dataclass
class CompletionOperation(Operation):
    """POST /v1/completions."""

    def __post_init__(self) -> None:
        self.request_body = _json(["model", "prompt"], {"prompt": _PROMPT, **_OPTIONS})


@dataclasses.dataclass
class TokenizeOperation(Operation):
    """POST /v1/tokenize."""

    def __post_init__(self) -> None:
        self.request_body = _json([], {"model": _TEXT, "prompt": _PROMPT, "messages": _MESSAGES})


@dataclasses.dataclass
class PolicyOperation(Operation):
    """PUT /api/policy."""

    def __post_init__(self) -> None:
        coefficients = Schema(type=OpenAPIType.OBJECT, additional_properties=Schema(one_of=[_NUMBER, _TEXT]))
        self.request_body = _json([], {"preset": _TEXT, "coefficients": coefficients, **_WHO})


@dataclasses.dataclass
class RollbackOperation(Operation):
    """POST /api/policy/rollback."""

    def __post_init__(self) -> None:
        self.request_body = _json([], {"to_version": _INTEGER, **_WHO})
