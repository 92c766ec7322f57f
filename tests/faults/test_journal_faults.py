"""A damaged or missing part of the journal is known by its fences, counted and told; the rest of the trace is whole."""

from __future__ import annotations

import os
import signal

import pytest
from waiting import wait_until

from service.journal.segments import SegmentFile, segment_numbers, segment_path
from tests.e2e.helios_server import process_state
from tests.faults.bed import LONG_S, assert_conserved, assert_gap_is_told, bed, damage, frames_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SEGMENT_BYTES = 64 << 10


def stop_recorder(server) -> int:
    """The recorder's pid, once it no longer runs, so that what comes now is unread."""
    recorder = server.kill("service.recorder", signal.SIGSTOP)
    wait_until(lambda: process_state(recorder) == "T", "the recorder to stop")
    return recorder


def first_sequence(directory, number) -> int:
    segment = SegmentFile(directory, number)
    segment.close()
    return segment.header.first_sequence


def test_a_torn_last_record_of_a_killed_engine_is_a_gap(tmp_path):
    with bed(tmp_path / "data") as server:
        directory, first = server.settings.journal_dir, server.submitter.run_id
        recorder = stop_recorder(server)
        server.serves_on()
        (number,) = segment_numbers(directory)
        server.kill("service.engine")
        server.submitter.wait_ready(other_than=first, seconds=LONG_S)
        begin, end = frames_of(directory, number)[-1]
        damage(segment_path(directory, number), (begin + end) // 2)
        os.kill(recorder, signal.SIGCONT)
        server.serves_on()
        received = server.settle()
        assert_gap_is_told(server, first, segment_path(directory, number).name)
        missing = assert_conserved(server.settings.database, received)
        assert {gap["run_id"] for gap in server.sql("SELECT run_id FROM trace_gaps")} == {first}
        assert len(missing[first].fences) <= 1


@pytest.mark.parametrize("part", ["header", "frame"])
def test_a_corrupt_segment_costs_what_it_held_and_no_more(tmp_path, part):
    with bed(tmp_path / "data", journal_segment_bytes=SEGMENT_BYTES) as server:
        directory, run = server.settings.journal_dir, server.submitter.run_id
        recorder = stop_recorder(server)
        unread = segment_numbers(directory)[-1] + 1
        wait_until(lambda: segment_numbers(directory)[-1] > unread + 1, "the journal to go on", LONG_S)
        path = segment_path(directory, unread)
        if part == "header":
            lost = first_sequence(directory, unread + 1) - first_sequence(directory, unread)
            damage(path, 8)
        else:
            frames = frames_of(directory, unread)
            begin, end = frames[len(frames) // 2]
            segment = SegmentFile(directory, unread)
            lost = segment.frame(end).sequence - segment.frame(begin).sequence
            segment.close()
            damage(path, end - 16)
        os.kill(recorder, signal.SIGCONT)
        server.serves_on()
        received = server.settle()
        assert_gap_is_told(server, run, path.name)
        assert server.metric("flare_trace_lost_records_total") == lost > 0
        missing = assert_conserved(server.settings.database, received)
        assert bool(missing[run].fences) or part == "frame"
        assert len(missing[run].fences) < lost


def test_a_budget_that_overflows_costs_the_oldest_records_and_says_so(tmp_path):
    """The recorder hangs for longer than the journal can hold."""
    budget = 8 * SEGMENT_BYTES
    with bed(tmp_path / "data", journal_segment_bytes=SEGMENT_BYTES, journal_budget=budget) as server:
        run = server.submitter.run_id
        recorder = stop_recorder(server)
        over = 'flare_journal_lost_records_total{cause="over_budget"}'
        wait_until(lambda: server.metric(over) > 0, "the budget to be over", LONG_S)
        wait_until(lambda: server.warned("--journal-budget does not hold"), "the warning", LONG_S)
        server.serves_on()
        assert server.metric("flare_journal_bytes") <= budget + SEGMENT_BYTES
        os.kill(recorder, signal.SIGCONT)
        received = server.settle()
        assert_gap_is_told(server, run)
        assert assert_conserved(server.settings.database, received)[run].fences


def test_a_bit_that_flips_in_the_segment_being_read_costs_its_frame_alone(tmp_path):
    """In a length, which says where the next frame begins; the engine writes on in the same segment."""
    with bed(tmp_path / "data") as server:
        directory, run = server.settings.journal_dir, server.submitter.run_id
        wait_until(lambda: server.sql("SELECT fence FROM plans LIMIT 1"), "the recorder to read the segment", LONG_S)
        recorder = stop_recorder(server)
        (number,) = segment_numbers(directory)
        read_at_most = frames_of(directory, number)[-1][1]
        server.serves_on()
        ahead = [frame for frame in frames_of(directory, number) if frame[0] >= read_at_most]
        begin, end = ahead[len(ahead) // 2]
        segment = SegmentFile(directory, number)
        lost = segment.frame(end).sequence - segment.frame(begin).sequence
        segment.close()
        with segment_path(directory, number).open("r+b") as file:
            file.seek(begin + 1)
            length = file.read(1)[0]
            file.seek(begin + 1)
            file.write(bytes([length ^ 4]))
        os.kill(recorder, signal.SIGCONT)
        server.serves_on()
        received = server.settle()
        assert server.submitter.run_id == run
        assert segment_numbers(directory) == [number]
        assert_gap_is_told(server, run, f"is damaged at byte {begin}")
        assert server.metric("flare_trace_lost_records_total") == lost > 0
        assert len(assert_conserved(server.settings.database, received)[run].fences) <= lost
