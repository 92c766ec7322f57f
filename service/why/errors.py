"""Typed errors of explaining and auditing.

    WhyError
    ├── NotRecorded     the store knows no such run, or no plan under this fence
    ├── NotReplayable   the decision cannot be re-executed; the message says why
    └── BundleUnusable  the bundle cannot be read or written

Messages say what is wrong and what to do; none of them holds a password.
"""

from __future__ import annotations


class WhyError(Exception):
    """Base of these errors."""


class NotRecorded(WhyError):
    """There is nothing to explain under this name."""


class NotReplayable(WhyError):
    """The log that the decision would be re-executed from is missing, damaged or of another program."""


class BundleUnusable(WhyError):
    """A zip that is no bundle, or that cannot be written."""
