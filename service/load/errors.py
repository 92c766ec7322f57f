"""Why a load cannot be run.

LoadError
├── EngineDidNotStart   the engine's process ended, or was not ready in time; the message has its last line
├── LoadRefused         the engine does not take the load's requests
└── LoadStalled         no token came for a long time
"""

from __future__ import annotations


class LoadError(Exception):
    """Base of the errors of a load."""


class EngineDidNotStart(LoadError):
    """The engine's process ended, or was not ready in time."""


class LoadRefused(LoadError):
    """The engine refused a request of the load."""


class LoadStalled(LoadError):
    """No token came for a long time."""
