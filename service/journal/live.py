"""Which run writes to a journal now."""

from __future__ import annotations

import contextlib
import pathlib

from service.journal.errors import SegmentDamaged
from service.journal.segments import SegmentFile, segment_numbers, writer_lives


def live_run(directory: pathlib.Path) -> str | None:
    """The run whose engine holds the journal; None when there is none, or when that cannot be known."""
    if not writer_lives(directory):
        return None
    for number in reversed(segment_numbers(directory)):
        with contextlib.suppress(FileNotFoundError, SegmentDamaged):
            segment = SegmentFile(directory, number)
            segment.close()
            return segment.header.run_id
    return None
