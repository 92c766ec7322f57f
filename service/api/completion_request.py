"""The body of /v1/completions."""

from __future__ import annotations

import dataclasses
from typing import Any

from service.api.errors import BadRequest
from service.api.generation_options import COMPLETION_NEUTRAL, MOST_LOGPROBS, Options, read_options
from service.api.json_body import Body, boolean, describe, integer

DEFAULT_MAX_TOKENS = 16
_FORMS = "a string, an array of one string, or an array of token ids"


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A checked completion. `prompt` is text or token ids, never empty.

    `echo`: the answer begins with the prompt. With it `max_tokens` may be 0: only the prompt is answered.
    """

    prompt: str | list[int]
    options: Options
    echo: bool


def read_completion_request(body: Body, vocab_size: int) -> CompletionRequest:
    """Checks the whole body; raises BadRequest naming the first bad field."""
    echo = boolean(body, "echo")
    _check_max_tokens(body, echo)
    options = read_options(
        body,
        {"prompt", "echo", "best_of"},
        COMPLETION_NEUTRAL,
        vocab_size,
        logprobs=integer(body, "logprobs", 0, MOST_LOGPROBS),
        least_tokens=0 if echo else 1,
    )
    _check_best_of(body, options.choices)
    return CompletionRequest(read_prompt(body.get("prompt"), vocab_size), options, echo)


def _check_max_tokens(body: Body, echo: bool) -> None:
    value = body.get("max_tokens")
    if type(value) is int and value == 0 and not echo:
        raise BadRequest("max_tokens must be an integer from 1; 0 is allowed with echo only.", "max_tokens")


def _check_best_of(body: Body, choices: int) -> None:
    value = body.get("best_of")
    if value is not None and (type(value) is not int or value != choices):
        raise BadRequest(
            "best_of is not supported yet. Leave it out or use the value of n.", "best_of", "unsupported_parameter"
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
