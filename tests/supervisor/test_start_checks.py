"""What keeps a server from starting, and the words for it."""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import pathlib
import socket
import stat

import pytest

from service.credentials.caller import Role
from service.credentials.files import add_credential
from service.settings import SOCKET_PATH_BYTES, Settings
from service.supervisor import checks, files, preparation
from service.supervisor.data_dir import DataDir
from service.supervisor.errors import (
    CredentialsRefused,
    DataDirBusy,
    DataDirUnusable,
    HostRefused,
    ModelRefused,
    PolicyRefused,
    PortInUse,
    StoreRefused,
)
from service.supervisor.report import base_url


def settings_in(folder: pathlib.Path, **changes: object) -> Settings:
    given = {"data_dir": str(folder), "database": f"sqlite:///{folder}/helios.db", "threads": 1, **changes}
    return Settings(**given)


def test_a_data_directory_belongs_to_one_server_and_the_refusal_names_its_pid(tmp_path):
    held = DataDir(settings_in(tmp_path))
    with pytest.raises(DataDirBusy, match=rf"pid {os.getpid()}\b.*--data-dir"):
        DataDir(settings_in(tmp_path))
    held.release()
    held.release()
    DataDir(settings_in(tmp_path)).release()


def test_a_start_that_does_not_happen_leaves_the_data_directory_as_it_was(tmp_path):
    made = DataDir(settings_in(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b" / "run").is_dir()
    made.undo()
    made.undo()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "engine.metrics").write_text("of an earlier server")
    (tmp_path / "lock").write_text("12345\n")
    DataDir(settings_in(tmp_path)).undo()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["engine.metrics", "lock", "run"]
    made = DataDir(settings_in(tmp_path / "c"))
    (tmp_path / "c" / "helios.db").write_text("a database")
    made.undo()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["helios.db"]


def test_a_lock_file_that_is_removed_while_it_is_taken_is_taken_again(tmp_path, monkeypatch):
    first = DataDir(settings_in(tmp_path))
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        first.undo()  # the other server gives up after this one opened its file
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    second = DataDir(settings_in(tmp_path))
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(DataDirBusy):
        DataDir(settings_in(tmp_path))
    second.release()


def test_the_run_folder_is_private_even_when_it_was_not(tmp_path):
    (tmp_path / "run").mkdir(mode=0o755)
    DataDir(settings_in(tmp_path)).release()
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_a_data_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        with pytest.raises(DataDirUnusable, match="--data-dir"):
            DataDir(settings_in(tmp_path / name))


@pytest.mark.skipif(not pathlib.Path("/proc/self").is_dir(), reason="needs a read-only folder that binds root too")
def test_a_data_directory_that_cannot_be_written_is_refused():
    with pytest.raises(DataDirUnusable, match="cannot write to the data directory /proc/self/helios"):
        DataDir(settings_in(pathlib.Path("/proc/self/helios")))


def test_a_port_in_use_is_refused_and_a_free_one_is_left_free():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        port = listener.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} on 127\.0\.0\.1 is in use.*--port"):
            checks.check_port("127.0.0.1", port)
    checks.check_port("127.0.0.1", port)
    checks.check_port("127.0.0.1", port)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machines_own_addresses_are_served(host):
    checks.check_host(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", "", "127.0.0.1.example.org"])
def test_other_addresses_are_refused_while_there_are_no_credentials(host):
    with pytest.raises(HostRefused, match="helios keys add"):
        checks.check_host(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "127.0.0.1"])
def test_credentials_open_any_address_and_must_be_usable_everywhere(tmp_path, host):
    file = tmp_path / "credentials.json"
    with pytest.raises(CredentialsRefused, match="helios keys add"):
        checks.check_host(host, str(file))
    add_credential(file, "ann", Role.OPERATOR, dt.datetime.now(dt.UTC))
    checks.check_host(host, str(file))
    file.chmod(0o644)
    with pytest.raises(CredentialsRefused, match="chmod 600"):
        checks.check_host(host, str(file))


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1"), ("192.168.1.4", "http://192.168.1.4:1")],
)
def test_the_printed_address_is_one_that_can_be_opened(tmp_path, host, url):
    assert base_url(settings_in(tmp_path, host=host, port=1)) == url


def test_an_unknown_model_is_refused_with_the_names_that_exist(tmp_path):
    with pytest.raises(ModelRefused, match="smollm2-135m-instruct"):
        preparation.check_model(settings_in(tmp_path, model="gpt-17"))


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "helios.db").write_bytes(b"this is a letter to my aunt, not a database\n" * 200)
    with pytest.raises(StoreRefused, match=r"helios\.db"):
        preparation.prepare_store(settings_in(tmp_path))


def test_the_first_start_makes_version_1_and_a_flag_that_differs_makes_version_2(tmp_path):
    settings = settings_in(tmp_path)
    preparation.prepare_store(settings)
    assert preparation.first_policy(settings).version == 1
    flagged = preparation.first_policy(settings_in(tmp_path, scheduler_terminal_value=7.0))
    assert (flagged.version, flagged.config.terminal_value, flagged.actor) == (2, 7.0, "command line")
    assert preparation.first_policy(settings).version == 2


def test_a_flag_with_a_bad_value_is_refused_and_makes_no_version(tmp_path):
    settings = settings_in(tmp_path)
    preparation.prepare_store(settings)
    with pytest.raises(PolicyRefused, match="terminal_value"):
        preparation.first_policy(settings_in(tmp_path, scheduler_terminal_value=-1.0))
    assert preparation.first_policy(settings).version == 1


def test_a_socket_path_too_long_for_the_kernel_moves_to_a_short_private_folder(tmp_path):
    long = settings_in(tmp_path / ("d" * 60) / ("e" * 60))
    endpoint = long.engine_endpoint.removeprefix("ipc://")
    assert len(os.fsencode(endpoint)) <= SOCKET_PATH_BYTES
    assert endpoint == settings_in(tmp_path / ("d" * 60) / ("e" * 60)).engine_endpoint.removeprefix("ipc://")
    assert long.socket_dir != settings_in(tmp_path / ("d" * 60) / ("f" * 60)).socket_dir
    held = DataDir(long)
    held.make_socket_dir()
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(endpoint)
        assert stat.S_IMODE(long.socket_dir.stat().st_mode) == 0o700
        long.socket_dir.chmod(0o777)
        with pytest.raises(DataDirUnusable, match="not private"):
            held.make_socket_dir()
    finally:
        pathlib.Path(endpoint).unlink()
        long.socket_dir.rmdir()


def test_run_ids_sort_by_time():
    moment = dt.datetime(2026, 11, 29, 18, 30, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    first, second = files.new_run_id(moment), files.new_run_id(moment + dt.timedelta(seconds=1))
    assert first.startswith("20261129T173000-")
    assert first < second
    assert files.new_run_id(moment) != first
