"""Typed errors of previews.

PreviewError (a ControlError)
├── InvalidPreview    a window or a sweep that cannot be used; `problems` maps fields to what is wrong
├── NothingRecorded   no traffic in the window, so there is nothing to replay
├── PreviewsFull      as many previews wait as may; try again when one has ended
├── UnknownPreview    no preview of this id, or one that was removed since
└── PreviewsUnusable  the files of previews cannot be written

Beside these a preview raises scheduler.errors.InvalidPolicy and service.store.errors.StoreError.
"""

from __future__ import annotations

from collections.abc import Mapping

from service.control.errors import ControlError


class PreviewError(ControlError):
    """Base of every error that previews raise on purpose."""


class InvalidPreview(PreviewError, ValueError):
    """`problems`: field to what is allowed."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        super().__init__("; ".join(f"{name}: {why}" for name, why in sorted(self.problems.items())))


class NothingRecorded(PreviewError):
    """No traffic in the window."""


class PreviewsFull(PreviewError):
    """As many previews wait as may."""


class UnknownPreview(PreviewError, LookupError):
    """No preview of this id."""


class PreviewsUnusable(PreviewError):
    """The files of previews cannot be written or read."""
