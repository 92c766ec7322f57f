"""OpenAI's response objects: one class per endpoint that writes the whole answer and the chunks of a stream."""

from __future__ import annotations

import dataclasses
import secrets
import time
import uuid
from typing import Any, Protocol

Json = dict[str, Any]


def new_id(prefix: str) -> str:
    """An id that nobody can guess, such as chatcmpl-4f…"""
    return f"{prefix}-{uuid.UUID(bytes=secrets.token_bytes(16), version=4).hex}"


def usage(prompt_tokens: int, output_tokens: int) -> Json:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }


class Wire(Protocol):
    """How one endpoint writes an answer. `usage` in chunks is null when it was asked for, and comes last."""

    @property
    def id(self) -> str:
        """The answer's id, which is also the request's."""

    def opening(self, include_usage: bool) -> Json | None:
        """A chunk before any text, if the endpoint has one."""

    def piece(self, text: str, include_usage: bool) -> Json:
        """A chunk with text."""

    def finish(self, reason: str, include_usage: bool) -> Json:
        """The chunk that ends the text."""

    def totals(self, prompt_tokens: int, output_tokens: int) -> Json:
        """The usage chunk, with no choices."""

    def whole(self, text: str, reason: str, prompt_tokens: int, output_tokens: int) -> Json:
        """The answer in one object."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChatWire:
    """chat.completion and chat.completion.chunk."""

    model: str
    id: str = dataclasses.field(default_factory=lambda: new_id("chatcmpl"))
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def opening(self, include_usage: bool) -> Json:
        return self._chunk({"role": "assistant", "content": "", "refusal": None}, None, include_usage)

    def piece(self, text: str, include_usage: bool) -> Json:
        return self._chunk({"content": text}, None, include_usage)

    def finish(self, reason: str, include_usage: bool) -> Json:
        return self._chunk({}, reason, include_usage)

    def totals(self, prompt_tokens: int, output_tokens: int) -> Json:
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(prompt_tokens, output_tokens)}

    def whole(self, text: str, reason: str, prompt_tokens: int, output_tokens: int) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(prompt_tokens, output_tokens)}

    def _chunk(self, delta: Json, reason: str | None, include_usage: bool) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if include_usage else chunk

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "system_fingerprint": None}


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionWire:
    """text_completion, whole or in chunks."""

    model: str
    id: str = dataclasses.field(default_factory=lambda: new_id("cmpl"))
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def opening(self, include_usage: bool) -> None:
        return None

    def piece(self, text: str, include_usage: bool) -> Json:
        return self._chunk(text, None, include_usage)

    def finish(self, reason: str, include_usage: bool) -> Json:
        return self._chunk("", reason, include_usage)

    def totals(self, prompt_tokens: int, output_tokens: int) -> Json:
        return {**self._head(), "choices": [], "usage": usage(prompt_tokens, output_tokens)}

    def whole(self, text: str, reason: str, prompt_tokens: int, output_tokens: int) -> Json:
        return {**self._chunk(text, reason, False), "usage": usage(prompt_tokens, output_tokens)}

    def _chunk(self, text: str, reason: str | None, include_usage: bool) -> Json:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        chunk = {**self._head(), "choices": [choice]}
        return {**chunk, "usage": None} if include_usage else chunk

    def _head(self) -> Json:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }
