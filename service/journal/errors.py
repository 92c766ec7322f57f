"""Typed errors of the journal.

    JournalError
    ├── JournalUnwritable     the directory or a segment cannot be created or read
    ├── JournalBusy           another engine writes to this directory
    ├── JournalTooSmall       the budget does not hold the smallest segments
    ├── FrameTooLarge         one iteration's records do not fit into a segment
    ├── UnknownLayout         a packed plan of another version, or one that does not fit its layout
    └── SegmentDamaged        a segment file that cannot be read as one
        ├── HeaderDamaged     too short, wrong magic or wrong checksum
        ├── OtherFormat       written by a version with another format
        └── OtherJournal      belongs to another directory's journal

The reader raises none of the SegmentDamaged errors: it reports a Gap instead.
"""

from __future__ import annotations

import pathlib


class JournalError(Exception):
    """Base of every error that the journal raises on purpose."""


class JournalUnwritable(JournalError):
    """The journal's directory or a file in it cannot be created, opened or read."""

    def __init__(self, path: pathlib.Path, error: OSError) -> None:
        super().__init__(
            f"cannot use the journal at {path}: {error.strerror or error}; make it a directory that this user "
            "can read and write, or choose another one with --data-dir"
        )


class JournalBusy(JournalError):
    """Another process holds the directory's writer lock."""


class JournalTooSmall(JournalError, ValueError):
    """The journal's budget is too small for its smallest segments."""


class FrameTooLarge(JournalError, ValueError):
    """One iteration's records are larger than a whole segment; they were counted as lost."""


class UnknownLayout(JournalError, ValueError):
    """A packed plan was written in a layout that this program does not know, or does not fit it."""


class SegmentDamaged(JournalError):
    """A segment file that cannot be read as a segment of this journal."""


class HeaderDamaged(SegmentDamaged):
    """The file is too short, does not begin like a segment, or its header's checksum is wrong."""


class OtherFormat(SegmentDamaged):
    """The segment was written in another format version."""


class OtherJournal(SegmentDamaged):
    """The segment belongs to another journal."""
