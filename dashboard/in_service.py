"""Which callbacks run in the service's own process: those that change something, and those that ask the service itself.

All others only read, and are answered by the reader (dashboard.reader) where there is one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from dashboard.caller import is_for_operators

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
IN_SERVICE = "helios_in_service"


def in_service(function: Callable[Given, Awaitable[Answer]]) -> Callable[Given, Awaitable[Answer]]:
    """Marks a callback that asks the service's process; it must be quick. Goes below the registration."""
    setattr(function, IN_SERVICE, True)
    return function


def runs_in_service(callback: Mapping[str, Any]) -> bool:
    """Whether an entry of Dash's callback map is marked with `in_service` or `operators_only`."""
    return is_for_operators(callback) or bool(getattr(callback.get("callback"), IN_SERVICE, False))
