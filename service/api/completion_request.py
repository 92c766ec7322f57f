"""The body of /v1/completions."""

from __future__ import annotations

import dataclasses
from typing import Any

from service.api.errors import BadRequest
from service.api.generation_options import COMPLETION_NEUTRAL, Options, read_options
from service.api.json_body import Body, describe

DEFAULT_MAX_TOKENS = 16
_FORMS = "a string, an array of one string, or an array of token ids"


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A checked completion. `prompt` is text or token ids, never empty."""

    prompt: str | list[int]
    options: Options


def read_completion_request(body: Body, vocab_size: int) -> CompletionRequest:
    """Checks the whole body; raises BadRequest naming the first bad field."""
    return CompletionRequest(
        options=read_options(body, {"prompt"}, COMPLETION_NEUTRAL), prompt=read_prompt(body.get("prompt"), vocab_size)
    )


def read_prompt(prompt: Any, vocab_size: int) -> str | list[int]:
    """One prompt in any of OpenAI's forms."""
    if isinstance(prompt, list) and len(prompt) > 1 and {str, list} & set(map(type, prompt)):
        raise BadRequest("prompt holds several prompts; send one request for each.", "prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        if not prompt:
            raise BadRequest("prompt is empty; send at least one character.", "prompt")
        return prompt
    if not isinstance(prompt, list):
        raise BadRequest(f"prompt must be {_FORMS}, not {describe(prompt)}.", "prompt")
    if not prompt:
        raise BadRequest(f"prompt is empty; send {_FORMS}.", "prompt")
    # A body can hold two million ids: these three passes run in C, the search for the culprit only when there is one.
    if set(map(type, prompt)) == {int} and min(prompt) >= 0 and max(prompt) < vocab_size:
        return prompt
    index, token_id = next((i, t) for i, t in enumerate(prompt) if type(t) is not int or not 0 <= t < vocab_size)
    raise BadRequest(
        f"prompt[{index}] must be a token id from 0 to {vocab_size - 1:,}, not {describe(token_id)}.", "prompt"
    )
