"""Text in and out of a model: tokenizer, chat template, incremental decoding and stop strings."""

from service.text.answer_text import AnswerText, Release
from service.text.decoding import IncrementalDecoder
from service.text.errors import TemplateError, TextError, TextModelError, UnencodableText
from service.text.loading import load_text_model
from service.text.model import TextModel
from service.text.stopping import StopMatcher

__all__ = [
    "AnswerText",
    "IncrementalDecoder",
    "Release",
    "StopMatcher",
    "TemplateError",
    "TextError",
    "TextModel",
    "TextModelError",
    "UnencodableText",
    "load_text_model",
]
