"""What the HTTP routes need of the engine's client. `service.ipc.client.EngineClient` satisfies it; tests script it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from service.ipc.messages import EngineReady, Submit, Tokens

EngineState = Literal["starting", "ready", "stopping", "down"]


class TokenStream(Protocol):
    """One request's tokens. Iterating raises EngineLost; it ends after the message with a finish_reason."""

    def __aiter__(self) -> AsyncIterator[Tokens]:
        """Itself."""

    async def __anext__(self) -> Tokens:
        """The next message."""

    def cancel(self, reason: str, answer_tokens: int | None = None) -> None:
        """End the request; its last Tokens message still follows. `answer_tokens`: those before a stop string."""


class EnginePort(Protocol):
    """The engine as seen from HTTP. `submit` enters once the engine has the request, and cancels it when left early.

    Entering raises EngineUnavailable, EngineRefused or EngineLost.
    """

    @property
    def state(self) -> EngineState:
        """Whether requests can be taken."""

    @property
    def ready(self) -> EngineReady | None:
        """The engine's identity and limits, while there is one."""

    async def start(self) -> None:
        """Begin connecting."""

    async def close(self) -> None:
        """End the connection."""

    def submit(self, request: Submit) -> AbstractAsyncContextManager[TokenStream]:
        """The request as a stream; nothing is sent before it is entered."""

    async def configure_policy(self, version: int, coefficients: dict[str, float | int | str]) -> int:
        """Use these coefficients from the next plan on; returns the fence after which they hold."""
