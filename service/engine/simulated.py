"""The device of `--device simulated`: measured durations, and tokens that the served model's tokenizer can write."""

from __future__ import annotations

from gpu.device import Device, ModelError
from gpu.simulated_device import create_simulated_device
from service.measurements import read_measurements
from service.model_source import ModelSource
from service.settings import Settings
from service.text.errors import TextModelError
from service.text.loading import load_text_model
from service.text.model import TextModel


def simulated_device(settings: Settings, source: ModelSource) -> Device:
    """A device that loads the model's configuration and tokenizer, and no weights.

    Raises SimulationError, InvalidSettings or ModelError.
    """
    measurements = read_measurements(settings)
    try:
        token_ids = plain_tokens(load_text_model(source))
    except TextModelError as error:
        raise ModelError(str(error)) from error
    return create_simulated_device(
        source.path,
        measurements.durations,
        token_ids,
        measurements.acceptance,
        request_slots=settings.request_slots,
        max_context=settings.max_context,
        kv_pages=settings.kv_pages,
    )


def plain_tokens(text: TextModel) -> list[int]:
    """Tokens that are whole printable text by themselves and end no answer, in the vocabulary's order."""
    stops = frozenset(text.stop_token_ids)
    table = text.table
    return [i for i in range(len(table)) if i not in stops and not table.is_special(i) and _plain(table.bytes_of(i))]


def _plain(token: bytes) -> bool:
    try:
        text = token.decode("utf-8")
    except UnicodeDecodeError:  # a part of a character
        return False
    return bool(text.strip()) and text.isprintable()
