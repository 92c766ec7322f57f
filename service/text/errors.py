"""Typed errors of the text layer.

TextError
├── TextModelError       a model's tokenizer or template files cannot be used (start-up; the operator's to fix)
├── TemplateError        the chat template refused these messages (the client's to fix)
└── UnencodableText      text that has no UTF-8 form, such as a lone surrogate (the client's to fix)
"""

from __future__ import annotations


class TextError(Exception):
    """Base of every error that the text layer raises on purpose."""


class TextModelError(TextError):
    """A model's tokenizer or template files are missing, broken or of an unsupported kind."""


class TemplateError(TextError, ValueError):
    """The chat template refused the messages, or failed on them."""


class UnencodableText(TextError, ValueError):
    """Text that has no UTF-8 form."""
