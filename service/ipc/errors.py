"""Typed errors of the connection between the service and the engine.

EngineError
├── EngineUnavailable  no engine is ready now; try again in a moment
├── EngineLost         the engine went away while it worked on this request
├── EngineRefused      the engine does not take this request; `code` and `message` say why
└── PolicyRejected     the engine does not take these coefficients; its policy is unchanged
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error of the engine's client."""


class EngineUnavailable(EngineError):
    """No engine is ready now. Nothing was started; for a policy change the message says what is unknown."""


class EngineLost(EngineError):
    """The engine went away while it worked on this request; tokens received so far are valid."""


class EngineRefused(EngineError):
    """The engine does not take this request.

    `code`: "too_long", "duplicate", "stopping", "queue_full" or "invalid". `message`: one sentence for the caller.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}")


class PolicyRejected(EngineError):
    """The engine does not take these coefficients; its policy is unchanged."""
