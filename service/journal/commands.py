"""`helios journal dump` and `helios journal verify`: what a journal holds, and whether all of it is whole.

Both only read. They return what to print; service.cli.journal prints it.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from service.journal.errors import JournalUnwritable, SegmentDamaged
from service.journal.reader import Batch, Gap, JournalReader
from service.journal.segments import (
    CLOSED,
    OPEN,
    SEALED,
    Progress,
    SegmentFile,
    segment_numbers,
    segment_path,
    writer_lives,
)

STATE = {OPEN: "open", SEALED: "sealed", CLOSED: "closed"}
SETTLING_TRIES = 100
SETTLING_PAUSE_S = 0.01
"""On a busy machine a writer may stand still for a while between the words of its progress."""


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment file. `problem` is None when it is whole; a torn last frame of a killed run is no problem."""

    segment: int
    run_id: str | None
    state: str
    bytes: int
    records: int
    last_fence: int | None
    problem: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """A journal's segments and what is missing between and in them. `writer`: a process writes to it now.

    Segments 1 to `removed_segments` are gone; they held `removed_records`, of which `evicted_records` went unread to
    keep the budget and the others once every sink had them.
    """

    journal_id: str
    writer: bool
    segments: list[SegmentReport]
    gaps: list[str]
    lost_records: int
    removed_segments: int = 0
    removed_records: int = 0
    evicted_records: int = 0

    @property
    def whole(self) -> bool:
        """Nothing is damaged or missing."""
        return not self.gaps and all(segment.problem is None for segment in self.segments)


def dump(directory: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Every record, and a `gap` where some are missing, oldest first. Raises JournalUnwritable."""
    reader = _open(directory)
    try:
        while (item := reader.poll()) is not None:
            if isinstance(item, Gap):
                yield {"gap": item.reason, "run_id": item.run_id, "lost_records": item.lost_records}
                continue
            for record in item.records:
                fields = {name: msgspec.to_builtins(_named(getattr(record, name))) for name in record.__struct_fields__}
                yield {
                    "record": type(record).__name__,
                    "run_id": item.run_id,
                    "segment": item.position.segment,
                    **fields,
                }
    finally:
        reader.close()


def verify(directory: pathlib.Path) -> Verification:
    """Read everything once, also while it is written. Raises JournalUnwritable."""
    reader = _open(directory)
    began_with = segment_numbers(directory)
    evicted = _removed(directory, began_with)[2]
    gaps: list[tuple[Gap, set[int]]] = []
    counts: dict[int, int] = {}
    try:
        before = began_with[0]
        while (item := reader.poll()) is not None:
            if isinstance(item, Batch):
                counts[item.position.segment] = counts.get(item.position.segment, 0) + len(item.records)
            else:
                gaps.append((item, set(range(before, item.position.segment))))
            before = item.position.segment
    finally:
        reader.close()
    numbers = segment_numbers(directory)
    removed = _removed(directory, numbers)
    # What vanished while we read had been shipped, unless the budget took something meanwhile.
    shipped = set(began_with) - set(numbers) if removed[2] == evicted else set()
    missing = [gap for gap, passed in gaps if not (passed & shipped and "gone" in gap.reason)]
    return Verification(
        reader.journal_id,
        bool(writer_lives(directory)),
        [
            report
            for number in numbers
            if (report := _report(directory, number, reader.journal_id, counts.get(number, 0), missing)) is not None
        ],
        [f"{gap.reason} ({gap.lost_records} records)" for gap in missing],
        sum(gap.lost_records for gap in missing),
        *removed,
    )


def describe(result: Verification) -> list[str]:
    """The verification as lines of text."""
    lines = [f"journal {result.journal_id}, {'being written' if result.writer else 'no writer'}"]
    if result.removed_segments:
        lines.append(_removed_line(result))
    for segment in result.segments:
        lines.append(
            f"segment {segment.segment:>6}  run {segment.run_id or '?':<16}  {segment.state:<7} {segment.records:>9} "
            f"records  last fence {segment.last_fence if segment.last_fence is not None else '?':>9}  "
            f"{segment.problem or 'whole'}"
        )
    lines += [f"missing: {gap}" for gap in result.gaps]
    whole = "everything that is here is whole" if result.removed_segments else "everything is whole"
    lines.append(whole if result.whole else f"{result.lost_records} records are known to be missing")
    return lines


def _removed_line(result: Verification) -> str:
    last = result.removed_segments
    which, were = ("segment 1", "was") if last == 1 else (f"segments 1–{last}", "were")
    records = f"{result.removed_records} records" if result.removed_records else "an unknown number of records"
    if result.evicted_records:
        return f"{which}, {records}, {were} removed: {result.evicted_records} unread to keep the budget, others shipped"
    return f"{which}, {records}, {were} shipped to every sink and removed"


def _removed(directory: pathlib.Path, numbers: list[int]) -> tuple[int, int, int]:
    """Segments before the oldest one present, their records, and how many records were evicted in all."""
    records = evicted = 0
    for number in numbers:
        try:
            segment = SegmentFile(directory, number)
        except (SegmentDamaged, FileNotFoundError):
            continue
        if number == numbers[0]:
            records = segment.header.first_sequence
        evicted = segment.evicted_records()  # the newest one's count is the latest
        segment.close()
    return (numbers[0] - 1 if numbers else 0), records, evicted


def _open(directory: pathlib.Path) -> JournalReader:
    """A reader for an existing journal: looking at a journal never creates one."""
    if not directory.is_dir():
        raise JournalUnwritable(directory, FileNotFoundError(2, "no such directory"))
    if not segment_numbers(directory):
        raise JournalUnwritable(directory, FileNotFoundError(2, "it holds no journal segments"))
    return JournalReader(directory)


def _report(
    directory: pathlib.Path, number: int, journal_id: str, records: int, gaps: list[Gap]
) -> SegmentReport | None:
    """None when it has been removed meanwhile."""
    path = segment_path(directory, number)
    try:
        size = path.stat().st_size
        segment = SegmentFile(directory, number, journal_id)
    except FileNotFoundError:
        return None
    except SegmentDamaged as error:
        return SegmentReport(number, None, "unknown", size, 0, None, str(error))
    progress = _settled_progress(segment)
    segment.close()
    problem = next((gap.reason for gap in gaps if path.name in gap.reason), None)
    if size < segment.header.size:
        problem = f"cut off: {size} of {segment.header.size} bytes"
    elif progress is None:
        problem = "its progress cannot be trusted"
    state = STATE.get(progress.state, "unknown") if progress is not None else "unknown"
    fence = progress.last_fence if progress is not None else None
    return SegmentReport(number, segment.header.run_id, state, size, records, fence, problem)


def _settled_progress(segment: SegmentFile) -> Progress | None:
    """The writer's place; None when it cannot be trusted, though a writer that was held up had time to go on."""
    for _ in range(SETTLING_TRIES):
        progress = segment.progress()
        if progress is not None:
            return progress
        time.sleep(SETTLING_PAUSE_S)
    return None


def _named(value: Any) -> Any:
    """Nested structs as objects with names instead of arrays."""
    if isinstance(value, msgspec.Struct):
        return {name: _named(getattr(value, name)) for name in value.__struct_fields__}
    return [_named(item) for item in value] if isinstance(value, list) else value
