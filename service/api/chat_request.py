"""The body of /v1/chat/completions."""

from __future__ import annotations

import dataclasses
from typing import Any

from service.api.errors import BadRequest
from service.api.generation_options import CHAT_NEUTRAL, MAX_TOKENS, MOST_LOGPROBS, Options, read_options
from service.api.json_body import Body, boolean, check_names, describe, integer

ROLES = ("system", "developer", "user", "assistant")
_UNSUPPORTED_ROLES = ("tool", "function")
_MESSAGE_FIELDS = frozenset({"role", "content", "name"})
_EMPTY_MESSAGE_FIELDS = frozenset(
    {"refusal", "annotations", "audio", "tool_calls", "function_call", "reasoning", "reasoning_content"}
)
MAX_MESSAGES = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked chat. Messages hold `role` (system, user or assistant) and `content` as one string."""

    messages: list[dict[str, str]]
    options: Options


def read_chat_request(body: Body, vocab_size: int) -> ChatRequest:
    """Checks the whole body; raises BadRequest naming the first bad field."""
    known = {"messages", "max_completion_tokens", "top_logprobs", "safety_identifier", "prompt_cache_key"}
    options = read_options(body, known, CHAT_NEUTRAL, vocab_size, logprobs=_logprobs(body))
    newer = integer(body, "max_completion_tokens", 1, MAX_TOKENS)
    if newer is not None:
        if options.max_tokens is not None:
            raise BadRequest("Give max_completion_tokens or max_tokens, not both.", "max_tokens")
        options = dataclasses.replace(options, max_tokens=newer)
    return ChatRequest(read_messages(body), options)


def _logprobs(body: Body) -> int | None:
    """`logprobs` turns the report on, `top_logprobs` says how many of the likeliest tokens it lists."""
    count = integer(body, "top_logprobs", 0, MOST_LOGPROBS)
    if boolean(body, "logprobs"):
        return count or 0
    if count:
        raise BadRequest("top_logprobs needs logprobs to be true.", "top_logprobs")
    return None


def read_messages(body: Body) -> list[dict[str, str]]:
    """`messages` with text parts joined; the developer role is the system role under its newer name."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest(
            f"messages must be an array with at least one message, not {describe_messages(messages)}.", "messages"
        )
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(f"messages holds more than {MAX_MESSAGES:,} messages.", "messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def describe_messages(value: object) -> str:
    """What was sent instead of messages."""
    return "an empty one" if value == [] else describe(value)


def _message(message: object, path: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise BadRequest(f"{path} must be an object with role and content, not {describe(message)}.", path)
    check_names(message, _MESSAGE_FIELDS | _EMPTY_MESSAGE_FIELDS | {"tool_call_id"}, f"{path}.")
    role = message.get("role")
    if role in _UNSUPPORTED_ROLES:
        raise BadRequest(
            f"{path}.role {role!r} is not supported yet; the roles are {', '.join(ROLES)}.", f"{path}.role"
        )
    if not isinstance(role, str) or role not in ROLES:
        raise BadRequest(f"{path}.role must be one of {', '.join(ROLES)}, not {describe(role)}.", f"{path}.role")
    for field in (*_EMPTY_MESSAGE_FIELDS, "tool_call_id"):
        if message.get(field) not in (None, [], ""):
            raise BadRequest(f"{path}.{field} is not supported yet; leave it out.", f"{path}.{field}")
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise BadRequest(f"{path}.name must be a string, not {describe(name)}.", f"{path}.name")
    return {"role": "system" if role == "developer" else role, "content": _content(message.get("content"), path)}


def _content(content: Any, path: str) -> str:
    path = f"{path}.content"
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise BadRequest(f"{path} must be a string or an array of text parts, not {describe_messages(content)}.", path)
    return "".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: object, path: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise BadRequest(f'{path} must be an object such as {{"type": "text", "text": "…"}}.', path)
    kind = part["type"]
    if kind != "text":
        raise BadRequest(
            f'{path} has type {describe(kind)}; this model takes text only. Send parts of type "text".', f"{path}.type"
        )
    check_names(part, {"type", "text"}, f"{path}.")
    if not isinstance(part.get("text"), str):
        raise BadRequest(f"{path}.text must be a string, not {describe(part.get('text'))}.", f"{path}.text")
    return str(part["text"])
