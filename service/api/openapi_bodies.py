"""What GET /schema says about request bodies. The checks themselves are in the readers; a test compares names."""

from __future__ import annotations

import dataclasses

from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema

from service.api.generation_options import MOST_CHOICES, MOST_LOGPROBS
from service.api.json_body import MOST_STOP_STRINGS
from service.api.sampling_options import (
    BIAS_LIMIT,
    HIGHEST_SEED,
    LEAST_REPETITION_PENALTY,
    LOWEST_SEED,
    MOST_BIASES,
    MOST_REPETITION_PENALTY,
    MOST_STOP_TOKENS,
    PENALTY_LIMIT,
)
from service.control.guard_terms import DEFAULT_MINUTES, LEAST_MINUTES, LIMIT_NAMES, MOST_MINUTES
from service.store.question import MOST_ROWS, MOST_SECONDS, MOST_STATEMENT

SEED_GUARANTEE = (
    "With a seed, the output is a function of model, prompt and sampling options, whatever else runs and however it is "
    "batched, speculated or preempted, up to float rounding of near-equal probabilities. Without a seed the same holds "
    "for greedy answers (temperature 0). Choice i of n is the answer to a request with n = 1 and seed + i."
)
_INTEGER, _NUMBER = Schema(type=OpenAPIType.INTEGER), Schema(type=OpenAPIType.NUMBER)
_TEXT, _FLAG = Schema(type=OpenAPIType.STRING), Schema(type=OpenAPIType.BOOLEAN)
_OBJECT = Schema(type=OpenAPIType.OBJECT)
_TOKENS = Schema(type=OpenAPIType.INTEGER, minimum=1)
_STOP = Schema(one_of=[_TEXT, Schema(type=OpenAPIType.ARRAY, items=_TEXT, max_items=MOST_STOP_STRINGS)])
_ECHO = "the answer begins with the prompt, whose tokens are among the log-probabilities"
_LOGPROB_RULE = (
    "natural logarithms under the model's own distribution, before any option changes it; none below -9999.0"
)
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


def _number(low: float, high: float, default: float, description: str) -> Schema:
    return Schema(type=OpenAPIType.NUMBER, minimum=low, maximum=high, default=default, description=description)


def _flag(description: str) -> Schema:
    return Schema(type=OpenAPIType.BOOLEAN, default=False, description=description)


def _integer(low: int, high: int, description: str) -> Schema:
    return Schema(type=OpenAPIType.INTEGER, minimum=low, maximum=high, description=description)


_SAMPLING = {
    "temperature": _number(0, 2, 1, "0 takes the likeliest token each time"),
    "top_p": Schema(
        type=OpenAPIType.NUMBER,
        exclusive_minimum=0,
        maximum=1,
        default=1,
        description="keeps the fewest likeliest tokens whose probabilities reach this sum",
    ),
    "top_k": Schema(
        type=OpenAPIType.INTEGER, minimum=-1, default=0, description="keeps so many likeliest tokens; 0 and -1 keep all"
    ),
    "min_p": _number(0, 1, 0, "drops tokens below this share of the likeliest token's probability"),
    "repetition_penalty": _number(
        LEAST_REPETITION_PENALTY,
        MOST_REPETITION_PENALTY,
        1,
        "divides positive and multiplies negative logits of tokens in prompt or answer",
    ),
    "presence_penalty": _number(-PENALTY_LIMIT, PENALTY_LIMIT, 0, "subtracted from logits of tokens in the answer"),
    "frequency_penalty": _number(
        -PENALTY_LIMIT, PENALTY_LIMIT, 0, "subtracted from a token's logit for each time it is in the answer"
    ),
    "logit_bias": Schema(
        type=OpenAPIType.OBJECT,
        max_properties=MOST_BIASES,
        additional_properties=Schema(type=OpenAPIType.NUMBER, minimum=-BIAS_LIMIT, maximum=BIAS_LIMIT),
        description="token ids, as strings, and what is added to their logits",
    ),
    "seed": _integer(LOWEST_SEED, HIGHEST_SEED, SEED_GUARANTEE),
}
_OPTIONS = {
    "model": _TEXT,
    "max_tokens": _TOKENS,
    **_SAMPLING,
    "n": _integer(1, MOST_CHOICES, "answers to the same prompt, each a request of its own to the engine"),
    "stop": _STOP,
    "stop_token_ids": Schema(
        type=OpenAPIType.ARRAY,
        items=_INTEGER,
        max_items=MOST_STOP_TOKENS,
        description="tokens that end the answer and are not part of it",
    ),
    "ignore_eos": _flag(
        "the model's own end tokens do not end the answer; stop, stop_token_ids and max_tokens still do"
    ),
    "prompt_logprobs": _integer(
        0,
        MOST_LOGPROBS,
        "beside each prompt token but the first, which has null, the likeliest tokens in its place; not with stream; "
        + _LOGPROB_RULE,
    ),
    "stream": _flag("the answer comes as server-sent events"),
    "stream_options": Schema(
        type=OpenAPIType.OBJECT,
        properties={
            "include_usage": _flag("a last chunk without choices has the usage of the whole answer"),
            "continuous_usage_stats": _flag(
                "every chunk has the usage so far of its choice; brings the last chunk too, and nothing where "
                "include_usage is false"
            ),
        },
    ),
    "user": _TEXT,
    "metadata": _OBJECT,
    "store": Schema(type=OpenAPIType.BOOLEAN, enum=[False]),
}
_CHAT_OPTIONS = {
    **_OPTIONS,
    "max_completion_tokens": _TOKENS,
    "logprobs": Schema(
        type=OpenAPIType.BOOLEAN, default=False, description="each token's log-probability; " + _LOGPROB_RULE
    ),
    "top_logprobs": _integer(0, MOST_LOGPROBS, "how many likeliest tokens to list beside each; needs logprobs"),
}
_COMPLETION_OPTIONS = {
    **_OPTIONS,
    "max_tokens": Schema(
        type=OpenAPIType.INTEGER,
        minimum=0,
        default=16,
        description="0, with echo only, answers with the prompt alone: one token is computed and not published",
    ),
    "logprobs": _integer(
        0, MOST_LOGPROBS, "each token's log-probability and those of so many likeliest tokens; " + _LOGPROB_RULE
    ),
    "echo": Schema(type=OpenAPIType.BOOLEAN, default=False, description=_ECHO),
    "best_of": Schema(type=OpenAPIType.INTEGER, description="the value of n, or absent"),
}
_WHO = {"actor": _TEXT, "note": _TEXT}


def _json(required: list[str], properties: dict[str, Schema]) -> RequestBody:
    schema = Schema(type=OpenAPIType.OBJECT, required=required or None, properties=dict(properties))
    return RequestBody(content={"application/json": OpenAPIMediaType(schema=schema)}, required=bool(required))


@dataclasses.dataclass
class ChatOperation(Operation):
    """POST /v1/chat/completions."""

    def __post_init__(self) -> None:
        self.request_body = _json(["model", "messages"], {"messages": _MESSAGES, **_CHAT_OPTIONS})


@dataclasses.dataclass
class CompletionOperation(Operation):
    """POST /v1/completions."""

    def __post_init__(self) -> None:
        self.request_body = _json(["model", "prompt"], {"prompt": _PROMPT, **_COMPLETION_OPTIONS})


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
        changes = {"preset": _TEXT, "coefficients": coefficients, "end_guard": _FLAG}
        self.request_body = _json([], {**changes, **_WHO, **self.more()})

    def more(self) -> dict[str, Schema]:
        """Fields of a change that is more than a change."""
        return {}


@dataclasses.dataclass
class GuardOperation(PolicyOperation):
    """POST /api/policy/guard."""

    def more(self) -> dict[str, Schema]:
        """How long it is watched, and by which limits."""
        limit = Schema(
            type=OpenAPIType.OBJECT,
            properties={"ratio": _NUMBER, "absolute": _NUMBER, "samples": _INTEGER},
            description="a ratio to the hour before, or an absolute value; null leaves the measure out",
        )
        limits = Schema(type=OpenAPIType.OBJECT, properties=dict.fromkeys(LIMIT_NAMES, limit))
        minutes = _number(LEAST_MINUTES, MOST_MINUTES, DEFAULT_MINUTES, "how long the trial lasts")
        return {"minutes": minutes, "limits": limits}


@dataclasses.dataclass
class PreviewOperation(Operation):
    """POST /api/policy/preview."""

    def __post_init__(self) -> None:
        values = Schema(one_of=[_NUMBER, _TEXT])
        sweep = Schema(
            type=OpenAPIType.OBJECT,
            max_properties=2,
            additional_properties=Schema(type=OpenAPIType.ARRAY, items=values, max_items=25),
            description="one or two coefficients and their values; 25 points at the most",
        )
        properties = {
            "preset": _TEXT,
            "coefficients": Schema(type=OpenAPIType.OBJECT, additional_properties=values),
            "minutes": _number(0.1, 1440, 10, "length of the window of recorded traffic"),
            "until": Schema(type=OpenAPIType.STRING, description="its end, RFC 3339; the newest plan by default"),
            "run": Schema(type=OpenAPIType.STRING, description="whose traffic; the run that planned last by default"),
            "sweep": sweep,
            "seed": _INTEGER,
            "actor": _TEXT,
        }
        self.request_body = _json([], properties)


@dataclasses.dataclass
class RollbackOperation(Operation):
    """POST /api/policy/rollback."""

    def __post_init__(self) -> None:
        self.request_body = _json([], {"to_version": _INTEGER, **_WHO})


@dataclasses.dataclass
class SqlOperation(Operation):
    """POST /api/sql."""

    def __post_init__(self) -> None:
        fields = {
            "statement": Schema(type=OpenAPIType.STRING, max_length=MOST_STATEMENT, description="one SELECT"),
            "rows": Schema(type=OpenAPIType.INTEGER, minimum=1, maximum=MOST_ROWS, default=1000),
            "timeout_s": Schema(type=OpenAPIType.NUMBER, exclusive_minimum=0, maximum=MOST_SECONDS, default=10),
            "format": Schema(type=OpenAPIType.STRING, enum=["json", "csv"], default="json"),
        }
        self.request_body = _json(["statement"], fields)
