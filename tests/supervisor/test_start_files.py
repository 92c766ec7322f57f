"""Start files on a disk that takes nothing more."""

from __future__ import annotations

import errno
import os
import pathlib

import msgspec
import pytest

from service.settings import Settings
from service.supervisor import files
from service.supervisor.supervision import RECORDER, SERVICE


@pytest.fixture
def settings(tmp_path: pathlib.Path) -> Settings:
    made = Settings(data_dir=str(tmp_path), database="", threads=1)
    made.run_dir.mkdir()
    return made


def fill_disk(monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "open", full)


def test_a_file_that_has_not_changed_is_not_written_again(settings, monkeypatch):
    with files.start_file(settings, RECORDER, settings) as first:
        pass
    fill_disk(monkeypatch)
    with files.start_file(settings, RECORDER, settings) as second:
        assert second == first == (str(settings.run_dir / "recorder.json"), ())


def test_a_file_that_cannot_be_written_is_handed_over_in_memory_and_closed_afterwards(settings, monkeypatch):
    fill_disk(monkeypatch)
    with files.start_file(settings, SERVICE, settings) as start:
        assert msgspec.json.decode(pathlib.Path(start.path).read_bytes(), type=Settings) == settings
        (descriptor,) = start.descriptors
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert list(settings.run_dir.iterdir()) == []


def test_without_memory_files_the_message_names_the_path_and_the_way_out(settings, monkeypatch):
    fill_disk(monkeypatch)
    monkeypatch.delattr(files.os, "memfd_create")
    expected = f"cannot write {settings.run_dir}/service.json: No space left on device; free disk space there"
    with pytest.raises(OSError, match=expected), files.start_file(settings, SERVICE, settings):
        pass
