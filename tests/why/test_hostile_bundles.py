"""Zips that somebody else made: whatever is in them, reading one ends with one line that says so."""

from __future__ import annotations

import json
import pathlib
import random
import zipfile

import pytest
from click.testing import CliRunner

from service.cli import main
from service.store import tables
from service.why import bundle_reader
from service.why.bundle import FORMAT, MANIFEST, ROWS
from service.why.bundle_reader import bundle_engine
from service.why.errors import BundleUnusable

RUN_ROW = {
    "run_id": "run-1",
    "started_at": "2026-01-01T00:00:00+00:00",
    "ended_at": None,
    "end_reason": None,
    "host": "",
    "version": "1",
    "model": "m",
    "device": "cpu",
    "catalog_digest": "0",
    "settings": {},
    "started_wall_ns": 1,
    "started_monotonic_ns": 1,
}
NAMES = [table.name for table in bundle_reader.TABLES] + ["decision_log"]


def members(**changed: object) -> dict[str, bytes]:
    """A bundle that is read, of one run without plans; `changed`: a table's rows, as JSON or as bytes."""
    rows = {name: [] for name in NAMES} | {"engine_runs": [RUN_ROW]} | changed
    made = {name: value if isinstance(value, bytes) else json.dumps(value).encode() for name, value in rows.items()}
    return {MANIFEST: json.dumps({"format": FORMAT}).encode()} | {ROWS.format(name): made[name] for name in made}


def zipped(path: pathlib.Path, content: dict[str, bytes]) -> pathlib.Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in content.items():
            bundle.writestr(name, data)
    return path


def runs(path: pathlib.Path) -> list[str]:
    with bundle_engine(path) as engine, engine.connect() as connection:
        return list(connection.execute(tables.engine_runs.select()).scalars())


LOG_ROW = {
    "run_id": "run-1",
    "first_call": 0,
    "first_fence": 0,
    "last_fence": 0,
    "is_checkpoint": True,
    "calls": 1,
}
REFUSED = {
    "rows that are numbers": {"engine_runs": [1, 2]},
    "rows that are one text": {"engine_runs": "abc"},
    "rows that are one object": {"engine_runs": {"a": 1}},
    "a number of more than 64 bits": {"engine_runs": [RUN_ROW | {"started_wall_ns": 2**70}]},
    "text for a number": {"engine_runs": [RUN_ROW | {"started_wall_ns": "x"}]},
    "a number for text": {"engine_runs": [RUN_ROW | {"catalog_digest": 7}]},
    "a log row with text for a number": {"decision_log": [LOG_ROW | {"last_fence": "x"}]},
    "a log row whose blob is missing": {"decision_log": [LOG_ROW]},
    "rows without end": {"engine_runs": b"[" + b"{}," * bundle_reader.MOST_OBJECTS + b"{}]"},
    "brackets in brackets": {"engine_runs": b"[" * 200_000},
    "text that is no UTF-8": {"engine_runs": b'[{"run_id": "\xff"}]'},
}


def test_the_plain_bundle_is_read(tmp_path):
    assert runs(zipped(tmp_path / "bug.zip", members())) == ["run-1"]


@pytest.mark.parametrize("what", REFUSED)
def test_rows_that_no_store_would_hold_are_refused(tmp_path, what):
    path = zipped(tmp_path / "bug.zip", members(**REFUSED[what]))
    with pytest.raises(BundleUnusable, match="no bundle of helios bundle, or a damaged one"):
        runs(path)
    result = CliRunner().invoke(main, ["explain", "run-1/1", "--bundle", str(path)], prog_name="helios")
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path):
    whole = zipped(tmp_path / "whole.zip", members()).read_bytes()
    path, refused, draws = tmp_path / "bug.zip", 0, random.Random(1)
    for _ in range(120):
        data = bytearray(whole)
        data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
        path.write_bytes(data)
        try:
            runs(path)
        except BundleUnusable:
            refused += 1
    assert refused > 20


def test_every_cut_is_refused(tmp_path):
    whole = zipped(tmp_path / "whole.zip", members()).read_bytes()
    path = tmp_path / "bug.zip"
    for size in range(0, len(whole), 397):
        path.write_bytes(whole[:size])
        with pytest.raises(BundleUnusable):
            runs(path)


@pytest.mark.parametrize(("offsets", "value"), [((6, 8), 1), ((8, 10), 99)], ids=["encrypted", "of another method"])
def test_members_that_cannot_be_unpacked_are_refused(tmp_path, offsets, value):
    """`offsets`: of the flags, or the method, in a member's own header and in the directory at the end."""
    path = zipped(tmp_path / "bug.zip", members())
    data = bytearray(path.read_bytes())
    for signature, offset in zip((b"PK\3\4", b"PK\1\2"), offsets, strict=True):
        at = data.find(signature)
        while at >= 0:
            data[at + offset] = value
            at = data.find(signature, at + 4)
    path.write_bytes(data)
    with pytest.raises(BundleUnusable):
        runs(path)


def test_members_that_unpack_to_more_than_a_bundle_are_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle_reader, "LARGEST_BUNDLE", 10_000)
    path = zipped(tmp_path / "bug.zip", members() | {"rows/other.json": bytes(10_000)})
    with pytest.raises(BundleUnusable, match="too large"):
        runs(path)


def test_names_that_lead_elsewhere_write_nothing(tmp_path):
    content = members() | {"../escaped": b"x", str(tmp_path / "absolute"): b"x"}
    folder = tmp_path / "inside"
    folder.mkdir()
    assert runs(zipped(folder / "bug.zip", content)) == ["run-1"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["bug.zip", "inside"]
