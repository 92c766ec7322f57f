"""The credentials' file: never a key in it, closed to others, replaced as a whole, refused when it is anything else."""

from __future__ import annotations

import datetime as dt
import json
import os
import pathlib
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.credentials.caller import Role
from service.credentials.errors import CredentialsUnusable, NameTaken, NoSuchName
from service.credentials.files import add_credential, decode, read_credentials, revoke_credential
from service.credentials.keys import KEY_IN_TEXT, id_in, is_key, new_key

NOW = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "credentials.json"


def test_a_key_is_shown_once_and_only_its_salted_hash_is_kept(file):
    added, key = add_credential(file, "ann", Role.OPERATOR, NOW)
    text = file.read_text()
    assert key not in text
    assert key.rpartition("_")[2] not in text
    assert is_key(key, added.salt, added.digest)
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_credentials(file).credentials == (added,)


def test_two_keys_share_nothing():
    made = [new_key() for _ in range(50)]
    for part in range(4):
        assert len({one[part] for one in made}) == 50
    assert all(id_in(one.key) == one.id and KEY_IN_TEXT.search(f"?x={one.key}".encode()) for one in made)


@given(st.integers(0, 200), st.characters(codec="utf-8"))
def test_no_other_text_is_the_key(at, other):
    made = new_key()
    at %= len(made.key)
    changed = made.key[:at] + other + made.key[at + 1 :]
    assert is_key(changed, made.salt, made.digest) == (changed == made.key)


def test_a_name_is_taken_once_and_free_again_when_it_is_revoked(file):
    _, first = add_credential(file, "ann", Role.VIEWER, NOW)
    with pytest.raises(NameTaken, match="ann"):
        add_credential(file, "ann", Role.OPERATOR, NOW)
    assert revoke_credential(file, "ann").name == "ann"
    with pytest.raises(NoSuchName, match="none"):
        revoke_credential(file, "ann")
    _, second = add_credential(file, "ann", Role.VIEWER, NOW)
    assert first != second


@pytest.mark.parametrize("name", ["", " ann", "a b", "<img src=x>", "=cmd", "a" * 65, "a\n", "ann:x", "'; DROP", "-a"])
def test_a_name_that_could_be_something_else_elsewhere_is_refused(file, name):
    with pytest.raises(CredentialsUnusable, match="letters"):
        add_credential(file, name, Role.VIEWER, NOW)
    assert not file.exists()


def test_changes_at_the_same_time_lose_nothing(file):
    threads = [
        threading.Thread(target=add_credential, args=(file, f"n{number}", Role.CLIENT, NOW)) for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.name for one in read_credentials(file).credentials} == {f"n{number}" for number in range(12)}
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o602, 0o666, 0o644])
def test_a_file_that_others_could_read_or_write_is_refused(file, mode):
    add_credential(file, "ann", Role.VIEWER, NOW)
    file.chmod(mode)
    with pytest.raises(CredentialsUnusable, match="chmod 600"):
        read_credentials(file)


@pytest.mark.timeout(30)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    """A wait would stop the server: each request looks whether the file has changed."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(CredentialsUnusable, match="is no file"):
        read_credentials(tmp_path / "pipe")


def test_a_mount_of_somebody_else_may_be_readable_but_not_writable(file, monkeypatch):
    add_credential(file, "ann", Role.VIEWER, NOW)
    file.chmod(0o444)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    assert len(read_credentials(file).credentials) == 1
    file.chmod(0o446)
    with pytest.raises(CredentialsUnusable):
        read_credentials(file)


def content(file: pathlib.Path, **changes: object) -> dict:
    add_credential(file, "ann", Role.VIEWER, NOW)
    whole = json.loads(file.read_text())
    whole["credentials"][0] |= changes
    return whole


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "root"}, {"digest": "short"}, {"digest": "Z" * 64}, {"salt": ""}, {"id": "x"}, {"name": "<b>"},
        {"created_at": "yesterday"}, {"created_at": "2026-11-30T12:00:00"}, {"expires_at": "2026-11-30T12:00:00"},
        {"more": 1},
    ],
)  # fmt: skip
def test_an_entry_that_is_no_credential_is_refused(file, changes):
    with pytest.raises(CredentialsUnusable):
        decode(json.dumps(content(file, **changes)).encode(), "x")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"version": 2, "secret": "%s"}' % (b"a" * 64)]
)
def test_what_is_no_such_file_is_refused(data):
    with pytest.raises(CredentialsUnusable):
        decode(data, "x")


def test_a_complaint_repeats_nothing_of_the_file(file):
    key = new_key().key
    for data in (key.encode(), json.dumps({"secret": key}).encode(), json.dumps(content(file, name=key)).encode()):
        with pytest.raises(CredentialsUnusable) as told:
            decode(data, "x")
        assert key not in str(told.value)
        assert told.value.__cause__ is None


def test_two_of_one_name_are_refused(file):
    whole = content(file)
    whole["credentials"].append({**whole["credentials"][0], "id": "0" * 12})
    with pytest.raises(CredentialsUnusable, match="two"):
        decode(json.dumps(whole).encode(), "x")


def test_a_file_that_is_missing_says_how_to_make_one(file):
    with pytest.raises(CredentialsUnusable, match="helios keys add --credentials-file"):
        read_credentials(file)
    with pytest.raises(CredentialsUnusable, match="folder"):
        add_credential(file.parent / "nowhere" / "x", "ann", Role.VIEWER, NOW)
    with pytest.raises(CredentialsUnusable, match="is no file"):
        read_credentials(file.parent)


def test_what_is_written_is_what_is_read(file):
    until = NOW + dt.timedelta(days=1)
    added, _ = add_credential(file, "ann", Role.VIEWER, NOW, until)
    again = read_credentials(file).credentials[0]
    assert msgspec.structs.asdict(again) == msgspec.structs.asdict(added)
    assert again.is_valid(NOW)
    assert not again.is_valid(until)
