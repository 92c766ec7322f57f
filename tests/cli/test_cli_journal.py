"""helios journal."""

from __future__ import annotations

import json

import pytest

from service.journal.records import PolicyApplied
from service.journal.segments import segment_numbers, segment_path
from service.journal.writer import JournalWriter


@pytest.fixture
def data_dir(tmp_path):
    writer = JournalWriter(tmp_path / "journal", run_id="20261129T183000-00000000", segment_bytes=1 << 20)
    writer.append([PolicyApplied(1, 0, 123, {"terminal_value": 256.0})], 0)
    writer.close()
    return tmp_path


def test_dump_prints_each_record_as_text_or_json(helios, data_dir):
    text = helios("journal", "dump", "--data-dir", data_dir)
    assert text.stdout.startswith("20261129T183000-00000000 PolicyApplied ")
    assert 'coefficients={"terminal_value": 256.0}' in text.stdout
    (line,) = helios("journal", "dump", "--data-dir", data_dir, "--json").stdout.splitlines()
    assert json.loads(line)["applied_ns"] == 123


def test_verify_exits_0_for_a_whole_journal_and_1_for_a_damaged_one(helios, data_dir):
    whole = helios("journal", "verify", "--data-dir", data_dir, "--json")
    assert (whole.exit_code, json.loads(whole.stdout)["whole"]) == (0, True)
    path = segment_path(data_dir / "journal", segment_numbers(data_dir / "journal")[0])
    path.write_bytes(path.read_bytes().replace(b"terminal_value", b"terminal_malue"))
    damaged = helios("journal", "verify", "--data-dir", data_dir)
    assert damaged.exit_code == 1
    assert "missing" in damaged.stdout


def test_verify_says_which_segments_were_shipped_and_removed(helios, tmp_path):
    for run in ("20261129T183000-00000000", "20261129T190000-00000000", "20261129T193000-00000000"):
        writer = JournalWriter(tmp_path / "journal", run_id=run, segment_bytes=1 << 20)
        writer.append([PolicyApplied(1, 0, 123, {"terminal_value": 256.0})] * 3, 0)
        writer.close()
    command = ("journal", "verify", "--data-dir", tmp_path)
    assert helios(*command).stdout.splitlines()[-1] == "everything is whole"
    segment_path(tmp_path / "journal", 1).unlink()
    shipped = helios(*command)
    assert shipped.stdout.splitlines()[1] == "segment 1, 3 records, was shipped to every sink and removed"
    assert (shipped.exit_code, shipped.stdout.splitlines()[-1]) == (0, "everything that is here is whole")
    segment_path(tmp_path / "journal", 2).unlink()
    assert "segments 1–2, 6 records, were shipped to every sink and removed" in helios(*command).stdout
    found = json.loads(helios(*command, "--json").stdout)
    assert (found["removed_segments"], found["removed_records"], found["evicted_records"]) == (2, 6, 0)


def test_a_missing_journal_is_said_with_exit_2(helios, tmp_path):
    for command in ("dump", "verify"):
        result = helios("journal", command, "--data-dir", tmp_path)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"helios journal {command}: ")
        assert str(tmp_path) in result.stderr
