"""OpenAI's response objects: one class per endpoint that writes the whole answer and the chunks of a stream."""

from __future__ import annotations

import dataclasses
import secrets
import time
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from service.api.generation_options import Options
from service.api.logprob_objects import chat_logprobs, completion_logprobs, prompt_logprobs
from service.api.pieces import FinishedChoice, Piece, ScoredToken
from service.ipc.messages import Operation
from service.text import TextModel

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
    """How one endpoint writes an answer. `usage` in chunks is null when it was asked for at the end alone.

    `index` is the choice's number, from 0.
    """

    @property
    def id(self) -> str:
        """The answer's id, which is also that of its first choice's request."""

    @property
    def operation(self) -> Operation:
        """What the client asked for."""

    def opening(self, index: int) -> Json | None:
        """A chunk before any text of a choice, if the endpoint has one."""

    def piece(self, index: int, piece: Piece) -> Json:
        """A chunk with text."""

    def finish(self, index: int, reason: str) -> Json:
        """The chunk that ends a choice's text."""

    def totals(self, prompt_tokens: int, output_tokens: int) -> Json:
        """The usage chunk, with no choices."""

    def whole(self, choices: Sequence[FinishedChoice], prompt_tokens: int, output_tokens: int) -> Json:
        """The answer in one object."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChatWire:
    """chat.completion and chat.completion.chunk."""

    operation: ClassVar[Operation] = "chat"
    text_model: TextModel
    options: Options
    id: str = dataclasses.field(default_factory=lambda: new_id("chatcmpl"))
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def opening(self, index: int) -> Json:
        return self._chunk(index, {"role": "assistant", "content": "", "refusal": None}, None, None)

    def piece(self, index: int, piece: Piece) -> Json:
        return self._chunk(index, {"content": piece.text}, self._logprobs(piece.tokens), None)

    def finish(self, index: int, reason: str) -> Json:
        return self._chunk(index, {}, None, reason)

    def totals(self, prompt_tokens: int, output_tokens: int) -> Json:
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(prompt_tokens, output_tokens)}

    def whole(self, choices: Sequence[FinishedChoice], prompt_tokens: int, output_tokens: int) -> Json:
        answer = {
            **self._head("chat.completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage(prompt_tokens, output_tokens),
        }
        count = self.options.prompt_logprobs
        if count is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self.text_model, choices[0].prompt_scores, count)
        return answer

    def _choice(self, index: int, choice: FinishedChoice) -> Json:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        logprobs = self._logprobs(choice.tokens)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json | None:
        count = self.options.logprobs
        return None if count is None else chat_logprobs(self.text_model, tokens, count)

    def _chunk(self, index: int, delta: Json, logprobs: Json | None, reason: str | None) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.options.include_usage else chunk

    def _head(self, kind: str) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.options.model,
            "system_fingerprint": None,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionWire:
    """text_completion, whole or in chunks."""

    operation: ClassVar[Operation] = "text_completion"
    text_model: TextModel
    options: Options
    id: str = dataclasses.field(default_factory=lambda: new_id("cmpl"))
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def opening(self, index: int) -> None:
        return None

    def piece(self, index: int, piece: Piece) -> Json:
        return self._chunk(self._choice(index, piece.text, self._logprobs(piece.tokens), None))

    def finish(self, index: int, reason: str) -> Json:
        return self._chunk(self._choice(index, "", None, reason))

    def totals(self, prompt_tokens: int, output_tokens: int) -> Json:
        return {**self._head(), "choices": [], "usage": usage(prompt_tokens, output_tokens)}

    def whole(self, choices: Sequence[FinishedChoice], prompt_tokens: int, output_tokens: int) -> Json:
        return {
            **self._head(),
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage(prompt_tokens, output_tokens),
        }

    def _whole_choice(self, index: int, choice: FinishedChoice) -> Json:
        written = self._choice(index, choice.text, self._logprobs(choice.tokens), choice.finish_reason)
        count = self.options.prompt_logprobs
        if count is not None:
            written["prompt_logprobs"] = prompt_logprobs(self.text_model, choice.prompt_scores, count)
        return written

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json | None:
        count = self.options.logprobs
        return None if count is None else completion_logprobs(self.text_model, tokens, count)

    def _choice(self, index: int, text: str, logprobs: Json | None, reason: str | None) -> Json:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _chunk(self, choice: Json) -> Json:
        chunk = {**self._head(), "choices": [choice]}
        return {**chunk, "usage": None} if self.options.include_usage else chunk

    def _head(self) -> Json:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.options.model,
            "system_fingerprint": None,
        }
