"""Keys and sessions are checked against the file as it is: rotated without a restart, and no broken file in force."""

from __future__ import annotations

import datetime as dt
import logging
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.credentials import key_ring as module
from service.credentials.attempts import BURST, LOG_EVERY_S, MOST_ADDRESSES, RETURN_S, FailedAttempts
from service.credentials.caller import Role
from service.credentials.errors import CredentialsUnusable
from service.credentials.files import add_credential, read_credentials, revoke_credential
from service.credentials.key_ring import KeyRing
from service.credentials.sessions import SESSION_S, credential_of, session_for


def add(file: pathlib.Path, name: str = "ann", role: Role = Role.OPERATOR, days: float | None = None) -> str:
    now = dt.datetime.now(dt.UTC)
    return add_credential(file, name, role, now, None if days is None else now + dt.timedelta(days=days))[1]


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "credentials.json"


def test_a_key_counts_from_its_adding_to_its_revoking(file):
    first = add(file)
    ring, other = KeyRing(file), KeyRing(file)
    second = add(file, "bob", Role.CLIENT)
    for one in (ring, other):
        assert one.holder(first).caller.name == "ann"
        assert one.holder(second).caller.role is Role.CLIENT
    session = ring.new_session(ring.holder(first))
    assert other.session(session).name == "ann"
    revoke_credential(file, "ann")
    for one in (ring, other):
        assert one.holder(first) is None
        assert one.session(session) is None
        assert one.holder(second) is not None


def test_a_name_made_anew_does_not_revive_old_sessions(file):
    key = add(file)
    ring = KeyRing(file)
    session = ring.new_session(ring.holder(key))
    revoke_credential(file, "ann")
    add(file)
    assert ring.session(session) is None


def test_an_expired_credential_opens_nothing(file):
    key = add(file, days=-1)
    ring = KeyRing(file)
    assert ring.holder(key) is None
    credential = read_credentials(file).credentials[0]
    assert ring.session(ring.new_session(credential)) is None


@pytest.mark.parametrize("broken", [b"", b"{", b"null"])
def test_a_new_file_that_is_broken_leaves_the_last_good_one_in_force_and_says_so(file, broken, caplog):
    key = add(file)
    ring = KeyRing(file)
    good = file.read_bytes()
    assert ring.problem == ""
    file.write_bytes(broken)
    assert ring.holder(key) is not None
    assert "before its last change" in ring.problem
    assert str(file) not in ring.problem
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert key not in caplog.text
    file.write_bytes(good)
    assert ring.problem == ""
    file.unlink()
    assert ring.holder(key) is not None
    assert ring.problem != ""


def test_a_file_that_was_opened_to_others_is_not_taken_over(file):
    key = add(file)
    ring = KeyRing(file)
    file.chmod(0o644)
    assert ring.holder(key) is not None
    assert ring.problem != ""
    file.chmod(0o600)
    assert ring.problem == ""


def test_the_file_is_read_once_for_each_change(file, monkeypatch):
    key = add(file)
    reads = []
    monkeypatch.setattr(module, "read_credentials", lambda path: reads.append(1) or read_credentials(path))
    ring = KeyRing(file)
    for _ in range(100):
        ring.holder(key)
    add(file, "bob")
    for _ in range(100):
        ring.holder(key)
    assert len(reads) == 2


def test_a_ring_without_a_good_file_is_not_made(file):
    with pytest.raises(CredentialsUnusable):
        KeyRing(file)


@pytest.mark.parametrize("key", ["", "helios_", "helios_000000000000_" + "a" * 43, "x" * 5000, "\udc80", "é" * 60])
def test_what_is_no_key_opens_nothing(file, key):
    add(file)
    assert KeyRing(file).holder(key) is None


def test_a_name_beside_the_key_must_be_its_own(file):
    key = add(file)
    ring = KeyRing(file)
    assert ring.holder(key, "ann") == ring.holder(key, "") == ring.holder(key)
    assert ring.holder(key, "bob") is None


def test_a_session_ends_and_cannot_be_lengthened_or_moved_to_another(file):
    add(file)
    add(file, "bob")
    whole = read_credentials(file)
    by_id = {one.id: one for one in whole.credentials}
    ann, bob = whole.credentials
    session = session_for(ann, whole.secret, 1000)
    name, until, signature = session.split(".")

    def holder(text: str, now_s: int = 1000, secret: str = whole.secret):
        return credential_of(text, secret, now_s, by_id.get)

    assert holder(session) is ann
    assert holder(session, 1000 + SESSION_S - 1) is ann
    assert holder(session, 1000 + SESSION_S) is None
    assert holder(session, secret="0" * 64) is None
    later = int(until) + 1
    for forged in (f"{bob.id}.{until}.{signature}", f"{name}.{later}.{signature}", f"{name}.{until}.{'0' * 64}",
                   f"{name}.{until}", "", "..", session + "\n", f"{name}.0{until}.{signature}"):  # fmt: skip
        assert holder(forged) is None, forged


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 30)), max_size=60))
def test_failures_are_answered_as_a_plain_count_says(steps):
    """The twin: a failure waits when BURST + elapsed / RETURN_S since the last full bucket is used up."""
    attempts, now, left, at = FailedAttempts(), 0.0, {}, {}
    for address, pause in steps:
        now += pause
        left[address] = min(BURST, left.get(address, BURST) + (now - at.get(address, now)) / RETURN_S)
        at[address] = now
        allowed = left[address] >= 1
        left[address] -= allowed
        assert (attempts.failed(str(address), now).wait_s == 0) == allowed


def test_failures_are_bounded_in_memory_and_logged_once_a_minute():
    attempts = FailedAttempts()
    for number in range(3 * MOST_ADDRESSES):
        attempts.failed(f"10.0.{number // 256}.{number % 256}", float(number))
    assert len(attempts) == MOST_ADDRESSES
    logged = [attempts.failed("::1", 10_000.0 + number).to_log for number in range(int(2 * LOG_EVERY_S))]
    assert [count for count in logged if count] == [1, int(LOG_EVERY_S)]
