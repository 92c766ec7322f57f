"""Chat templates: the model file's own jinja2, rendered in a sandbox with the helpers that model authors expect."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from service.text.errors import TemplateError, TextModelError

MAX_RENDERED_CHARACTERS = 16 << 20


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Plain JSON; jinja's own filter escapes HTML characters, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _strftime_now(form: str) -> str:
    return dt.datetime.now().astimezone().strftime(form)


class ChatTemplate:
    """One compiled template. Raises TextModelError when `source` is not valid jinja2."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: names such as bos_token and eos_token to their text."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.exceptions.TemplateError as error:
            raise TextModelError(f"the model's chat template is not valid jinja2: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text, ending where the assistant's answer begins.

        Raises TemplateError when the template refuses the messages.
        """
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **self._special_tokens)
        except jinja2.exceptions.TemplateError as error:
            raise TemplateError(f"the model's chat template does not accept these messages: {error}") from error
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError, OverflowError) as error:
            raise TemplateError(f"the model's chat template fails on these messages ({error})") from error
        if len(text) > MAX_RENDERED_CHARACTERS:
            raise TemplateError(f"the rendered chat is longer than {MAX_RENDERED_CHARACTERS:,} characters")
        return text
