"""Why a load cannot be run.

LoadError
├── BrowserMissing      there is no browser to look at pages with
├── PageNotShown        a page of the dashboard did not appear, or did not answer
├── EngineDidNotStart   the engine's process ended, or was not ready in time; the message has its last line
├── LoadRefused         the engine does not take the load's requests
└── LoadStalled         no token came for a long time
"""

from __future__ import annotations


class LoadError(Exception):
    """Base of the errors of a load."""


class BrowserMissing(LoadError):
    """There is no Chromium or no Playwright here, or it cannot be started."""


class PageNotShown(LoadError):
    """A page did not show what it should in time."""


class EngineDidNotStart(LoadError):
    """The engine's process ended, or was not ready in time."""


class LoadRefused(LoadError):
    """The engine refused a request of the load."""


class LoadStalled(LoadError):
    """No token came for a long time."""
