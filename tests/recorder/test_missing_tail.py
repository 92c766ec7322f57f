"""What a dead engine's journal counts and does not hold is a row of trace_gaps, without waiting for the next run."""

from __future__ import annotations

from service.journal.segments import HEADER_BYTES, SegmentFile, segment_numbers, segment_path
from service.store.tables import plans, trace_gaps


def test_a_missing_tail_is_a_row_of_trace_gaps(any_store, tmp_path, make):
    directory = tmp_path / "journal"
    make.write_frames(directory, make.story(40))
    last = segment_numbers(directory)[-1]
    segment = SegmentFile(directory, last)
    offset = HEADER_BYTES
    for _ in range(4):
        offset = segment.frame(offset).end
    progress = segment.progress()
    segment.close()
    with segment_path(directory, last).open("r+b") as file:
        file.seek(offset)
        file.write(bytes(progress.end - offset))
    lost = make.drain(any_store, directory)
    (gap,) = make.rows(any_store, trace_gaps)
    assert (
        gap["reason"]
        == f"segment-{last:08d}.hj ends at byte {offset} before the last records that it counts ({lost} records)"
    )
    assert lost > 0
    stored = [row["fence"] for row in make.rows(any_store, plans)]
    assert gap["to_fence"] == progress.last_fence == 40
    assert gap["from_fence"] == max(stored) + 1
    make.write_frames(directory, make.story(3, run_id="run-2"), "run-2")
    assert make.drain(any_store, directory) == 0, "told once"
    assert len(make.rows(any_store, trace_gaps)) == 1
