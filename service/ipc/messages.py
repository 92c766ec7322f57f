"""Messages between the service process and the engine process, over ZeroMQ as msgspec msgpack.

The engine binds a ROUTER socket; each service worker connects a DEALER. One ZeroMQ frame holds one message
(service to engine) or one `Events` message (engine to service, at most one per worker iteration and client).
Times named `_ns` are CLOCK_MONOTONIC, which all processes of one host share.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Operation = Literal["chat", "text_completion"]
"""What a client asked for, as the GenAI conventions name it."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """First message of a service worker; the engine answers with EngineReady. Sent again after a reconnect."""

    worker: str


class Sampling(msgspec.Struct, frozen=True):
    """How tokens are drawn; gpu.device.SamplingParameters says what each number means.

    temperature 0 is greedy; top_p 1 keeps the whole vocabulary. `logit_bias`: (token id, addend) pairs. A request that
    names its `seed` is reproducible.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: list[tuple[int, float]] = []


class Submit(msgspec.Struct, tag="submit", frozen=True):
    """One request, already tokenized and checked against the context length.

    `stop_token_ids` end the answer and are not published. `host_stop` says that the service looks for stop
    strings and may cancel with reason "stop". `arrived_ns`: when the HTTP request arrived. `tokenize_ns`: how
    long tokenizing took. `traceparent`, `tracestate`: the caller's W3C headers, checked for form.
    `message_boundaries`: prompt endpoints of completed chat messages, ascending. `logprobs`: report each output token's
    log-probability and those of this many likeliest tokens; None: nothing. `prompt_logprobs`: the same for each prompt
    token but the first.
    `operation`: which of the endpoints was asked. `stream`: the answer comes in pieces. `choices`: as many requests
    with the same prompt make one answer.
    """

    request_id: str
    model: str
    prompt_token_ids: list[int]
    max_output_tokens: int
    sampling: Sampling
    stop_token_ids: list[int]
    host_stop: bool
    arrived_ns: int
    tokenize_ns: int
    traceparent: str | None = None
    message_boundaries: list[int] = []
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    operation: Operation = "text_completion"
    tracestate: str | None = None
    stream: bool = False
    choices: int = 1


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """Ends a request. reason: "abort" (client gone) or "stop" (stop string found; counts as success).

    `answer_tokens`: with "stop", so many of the output tokens that were sent lie before the stop string. They are what
    the next turn of a conversation will repeat, so the request's cached state is to end there; None: unknown.
    """

    request_id: str
    reason: str
    answer_tokens: int | None = None


class ConfigurePolicy(msgspec.Struct, tag="configure_policy", frozen=True):
    """Use these coefficients from the next plan on. Answered with PolicyAcknowledged.

    `withdraws`: no version after this one, up to that number, became the policy in force. The engine goes back from
    such a version, and refuses one that arrives later. Without it the engine never goes back to a lower number.
    """

    version: int
    coefficients: dict[str, float | int | str]
    withdraws: int | None = None


ToEngine = Hello | Submit | Cancel | ConfigurePolicy


class EngineReady(msgspec.Struct, tag="engine_ready", frozen=True):
    """The engine's identity and limits.

    `policy_version` is what it uses now. Versions up to `policy_withdrawn` that it does not use never take effect.
    """

    run_id: str
    pid: int
    policy_version: int
    context_tokens: int
    kv_pages: int
    page_tokens: int
    vocab_size: int
    policy_withdrawn: int = 0


class Accepted(msgspec.Struct, tag="accepted", frozen=True):
    """The engine has the request in its queue and in the journal's next write."""

    request_id: str


TokenScore = tuple[int, float, list[tuple[int, float]]]
"""A token id, its log-probability, and the likeliest tokens' ids with theirs, likeliest first; -inf is possible."""


class Tokens(msgspec.Struct, tag="tokens", frozen=True, omit_defaults=True):
    """Committed tokens of one request from one graph; stop tokens are left out.

    `finish_reason` is set on the request's last message ("stop", "length", "abort" or "error"); `error` explains
    "error" and an "abort" by the server. `prompt_tokens` and `output_tokens` are the request's totals so far;
    output_tokens counts a stop token too. `logprobs` has an entry for each of `token_ids` when the request asked for
    them; `prompt_logprobs` those of prompt tokens that were computed since the last message, in order.
    """

    request_id: str
    token_ids: list[int]
    prompt_tokens: int
    output_tokens: int
    finish_reason: str | None = None
    error: str | None = None
    logprobs: list[TokenScore] | None = None
    prompt_logprobs: list[TokenScore] | None = None


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A request that the engine could not take. code: "too_long", "duplicate", "stopping", "queue_full", "invalid".

    Almost always instead of Accepted; after it only when the device finds a request too large for its whole pool.
    """

    request_id: str
    code: str
    message: str


class PolicyAcknowledged(msgspec.Struct, tag="policy_acknowledged", frozen=True):
    """A ConfigurePolicy took effect after `fence` (the last committed one), or failed with `error`.

    `version` and `withdraws` repeat the command's, so that a late answer is not taken for another command's.
    """

    version: int
    fence: int
    error: str | None = None
    withdraws: int | None = None


class EngineStopping(msgspec.Struct, tag="engine_stopping", frozen=True):
    """The engine accepts nothing more; open requests receive their last Tokens message."""


Event = EngineReady | Accepted | Tokens | Refused | PolicyAcknowledged | EngineStopping


class Events(msgspec.Struct, frozen=True):
    """Everything that one worker iteration has for one service worker, in order. Empty: the engine looks whether
    the connection stands.
    """

    items: list[Event]


to_engine_decoder = msgspec.msgpack.Decoder(ToEngine)
events_decoder = msgspec.msgpack.Decoder(Events)
encode = msgspec.msgpack.encode
