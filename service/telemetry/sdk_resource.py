"""What the environment says about who sends spans, found by OpenTelemetry's own resource detectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource, ServiceInstanceIdResourceDetector

_UNNAMED = "unknown_service"
_INSTANCE = "service.instance.id"
_OF_THE_SDK = "telemetry.sdk."


def environment_attributes() -> Mapping[str, Any]:
    """OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and what OTEL_EXPERIMENTAL_RESOURCE_DETECTORS names, by attribute.

    Not the SDK's own name and version, since it does not build these spans, and not its stand-ins for a service's name
    and for an instance's id.
    """
    stand_in = ServiceInstanceIdResourceDetector().detect().attributes[_INSTANCE]
    found = {name: _sendable(value) for name, value in Resource.create().attributes.items()}
    return {
        _text(name): value
        for name, value in found.items()
        if value is not None
        and not name.startswith(_OF_THE_SDK)
        and not (name == "service.name" and str(value).startswith(_UNNAMED))
        and not (name == _INSTANCE and value == stand_in)
    }


def _sendable(value: Any) -> Any:
    """The value as an attribute can hold it; None for what none can, which a detector of somebody else's may find."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool | float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return [_text(item) for item in value]
    return None


def _text(value: str) -> str:
    """An environment may hold bytes that are no text."""
    return value.encode("utf-8", "replace").decode()
