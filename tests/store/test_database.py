"""Opening, upgrading and checking the store, and what people see when that fails."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pathlib
import sqlite3
import threading
import types

import pytest
import sqlalchemy as sa

from service.store import engines
from service.store.database import check, database_url, open_database, read_transaction, upgrade, write_transaction
from service.store.engines import parse_url
from service.store.errors import (
    DatabaseCorrupt,
    DatabaseForeign,
    DatabaseNewer,
    DatabaseOlder,
    InvalidDatabaseUrl,
    StoreBusy,
    StoreMissing,
    StoreNotWritable,
    StoreUnavailable,
)
from service.store.tables import trace_gaps


def add_gap(connection, reason="test"):
    connection.exec_driver_sql(
        f"INSERT INTO trace_gaps (noticed_at, reason) VALUES ('2026-01-01 00:00:00.000000', '{reason}')"
    )


def count_gaps(connection):
    return connection.scalar(sa.select(sa.func.count()).select_from(trace_gaps))


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_MS", 50)


def test_the_default_database_lies_in_the_data_directory(tmp_path):
    settings = types.SimpleNamespace(database="", data_dir=str(tmp_path))
    assert database_url(settings) == f"sqlite:///{tmp_path}/helios.db"


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_of_postgresql_uses_psycopg_3_and_keeps_the_password(scheme):
    settings = types.SimpleNamespace(database=f"{scheme}://anna:s3cret@db.example/helios", data_dir="")
    assert database_url(settings) == "postgresql+psycopg://anna:s3cret@db.example/helios"


@pytest.mark.parametrize(
    "address",
    ["", " ", "a\0b", "mysql://localhost/x", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=ro&uri=true",
     "postgresql+asyncpg://h/d", "postgresql://host:port/x", "sqlite+aiosqlite:///x.db"],
)  # fmt: skip
def test_an_address_that_cannot_hold_the_store_is_refused_with_an_example(address):
    with pytest.raises(InvalidDatabaseUrl, match=r"sqlite:////absolute/path"):
        parse_url(address)


def test_a_refused_address_does_not_repeat_its_password():
    with pytest.raises(InvalidDatabaseUrl) as caught:
        parse_url("mysql://anna:s3cret@host/x")
    assert "s3cret" not in str(caught.value)


def test_a_relative_path_becomes_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert parse_url("here.db").database == str(tmp_path / "here.db")
    assert parse_url("sqlite:///here.db").database == str(tmp_path / "here.db")


@pytest.mark.parametrize("name", ["with space.db", "100%.db", "q?mark#hash.db", "ünïcode.db"])
def test_a_file_name_with_odd_characters_works_for_writers_and_readers(tmp_path, name):
    path = tmp_path / name
    url = parse_url(str(path))
    assert upgrade(str(path)).state == "current"
    assert path.exists()
    for readonly in (False, True):
        engine = open_database(url, readonly=readonly)
        with read_transaction(engine) as connection:
            assert count_gaps(connection) == 0
        engine.dispose()
    assert check(str(path)).address == str(path)


def test_a_new_store_uses_the_write_ahead_log_and_its_directory_is_made(tmp_path):
    path = tmp_path / "a" / "b" / "helios.db"
    status = upgrade(str(path))
    assert (status.state, status.before) == ("current", None)
    engine = open_database(str(path))
    with read_transaction(engine) as connection:
        values = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        }
    engine.dispose()
    assert values == {"journal_mode": "wal", "synchronous": 1, "busy_timeout": 10_000, "foreign_keys": 0}


def test_a_second_upgrade_finds_nothing_to_do(store_url):
    status = upgrade(store_url)
    assert status.before == status.head == status.revision


def test_starters_that_collide_all_find_a_whole_store(tmp_path):
    address = str(tmp_path / "helios.db")
    start = threading.Barrier(4)

    def starter(_number):
        start.wait()
        return upgrade(address)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(starter, range(4)))
    assert [s.state for s in statuses] == ["current"] * 4
    assert sum(s.before is None for s in statuses) == 1


@pytest.mark.postgresql
def test_starters_that_collide_on_postgresql_all_find_a_whole_store(empty_postgresql_url):
    start = threading.Barrier(4)

    def starter(_number):
        start.wait()
        return upgrade(empty_postgresql_url)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(starter, range(4)))
    assert sum(s.before is None for s in statuses) == 1
    assert check(empty_postgresql_url).state == "current"


def test_a_write_that_reads_first_does_not_fail_when_another_writer_was_there(sqlite_url):
    """A deferred transaction would fail at once with "database is locked" here."""
    engine, other = open_database(sqlite_url), open_database(sqlite_url)
    reading, done = threading.Event(), []

    def second_writer():
        reading.wait()
        with write_transaction(other) as connection:
            count_gaps(connection)
            add_gap(connection, "second")
            done.append(True)

    thread = threading.Thread(target=second_writer)
    thread.start()
    with write_transaction(engine) as connection:
        count_gaps(connection)
        reading.set()
        add_gap(connection, "first")
    thread.join()
    with read_transaction(engine) as connection:
        assert count_gaps(connection) == 2
    assert done == [True]
    engine.dispose()
    other.dispose()


def test_readers_go_on_while_a_writer_holds_the_lock(any_store, store_url):
    other = open_database(store_url, readonly=True)
    with write_transaction(any_store) as writer:
        add_gap(writer)
        with read_transaction(other) as reader:
            assert count_gaps(reader) == 0
    with read_transaction(other) as reader:
        assert count_gaps(reader) == 1
    other.dispose()


def test_a_failed_write_leaves_nothing_behind(any_store):
    def fail():
        with write_transaction(any_store) as connection:
            add_gap(connection)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with read_transaction(any_store) as connection:
        assert count_gaps(connection) == 0


def test_a_lock_held_too_long_is_reported_as_busy(impatient, sqlite_url):
    engine, other = open_database(sqlite_url), open_database(sqlite_url)
    with write_transaction(other), pytest.raises(StoreBusy, match="try again"), write_transaction(engine):
        pass
    assert engine.pool.checkedout() == 0
    engine.dispose()
    other.dispose()


def test_writing_outside_a_write_transaction_is_refused(store):
    with pytest.raises(StoreNotWritable), read_transaction(store) as connection:
        add_gap(connection)
    with store.connect() as connection, pytest.raises(sa.exc.OperationalError, match="readonly"):
        add_gap(connection)
    with write_transaction(store) as connection:  # the same pooled connection can write again
        add_gap(connection)


def test_a_read_only_engine_refuses_to_write(store_url):
    engine = open_database(store_url, readonly=True)
    with pytest.raises(StoreNotWritable), write_transaction(engine) as connection:
        add_gap(connection)
    engine.dispose()


@pytest.mark.postgresql
def test_a_read_transaction_on_postgresql_refuses_to_write(postgresql_url):
    engine = open_database(postgresql_url)
    with pytest.raises(StoreNotWritable), read_transaction(engine) as connection:
        add_gap(connection)
    with write_transaction(engine) as connection:
        add_gap(connection)
    engine.dispose()


def test_reading_a_database_that_is_not_there_says_who_creates_it(tmp_path):
    path = tmp_path / "helios.db"
    engine = open_database(str(path), readonly=True)
    with pytest.raises(StoreMissing, match="helios db upgrade"), read_transaction(engine):
        pass
    assert not path.exists()
    assert check(str(path)).state == "missing"
    engine.dispose()


def test_reading_a_database_without_tables_says_to_upgrade(tmp_path):
    path = tmp_path / "helios.db"
    path.touch()
    assert check(str(path)).state == "empty"
    engine = open_database(str(path))
    with pytest.raises(DatabaseOlder, match="helios db upgrade"), read_transaction(engine) as connection:
        count_gaps(connection)
    engine.dispose()


def test_a_newer_database_is_refused_and_left_as_it_is(any_store, store_url):
    with write_transaction(any_store) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    for look in (upgrade, check):
        with pytest.raises(DatabaseNewer, match=r"9999.*Install that version"):
            look(store_url)


@pytest.mark.parametrize("content", [b"not a database at all\n" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "helios.db"
    path.write_bytes(content)
    for look in (upgrade, check):
        with pytest.raises(DatabaseCorrupt, match="--database"):
            look(str(path))
    assert path.read_bytes() == content


def test_damage_in_the_middle_of_the_file_is_found_by_an_integrity_check(sqlite_url):
    path = pathlib.Path(str(parse_url(sqlite_url).database))
    content = bytearray(path.read_bytes())
    content[8192:12288] = b"\xa5" * 4096
    path.write_bytes(content)
    with pytest.raises(DatabaseCorrupt):
        check(sqlite_url, integrity=True)


def test_tables_of_someone_else_are_not_touched(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE plans (mine TEXT)")
    connection.close()
    with pytest.raises(DatabaseForeign, match="plans"):
        upgrade(str(path))


def test_a_path_below_a_file_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreNotWritable, match="--data-dir"):
        upgrade(str(tmp_path / "file" / "helios.db"))


def test_a_directory_in_the_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(StoreNotWritable, match="--database"):
        upgrade(str(tmp_path))


def test_a_file_system_that_cannot_be_written_is_refused():
    with pytest.raises(StoreNotWritable, match="--data-dir"):
        upgrade("/proc/helios/helios.db")


def test_a_full_disk_is_reported_and_nothing_is_half_written(store):
    with write_transaction(store) as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    def fill():
        with write_transaction(store) as connection:
            for _ in range(100):
                add_gap(connection, "x" * 4000)

    with pytest.raises(StoreUnavailable, match="Free disk space"):
        fill()
    with read_transaction(store) as connection:
        assert count_gaps(connection) == 0


def test_a_postgresql_that_does_not_answer_is_reported_without_the_password(free_port):
    url = f"postgresql://anna:s3cret@127.0.0.1:{free_port}/helios"
    for look in (upgrade, check):
        with pytest.raises(StoreUnavailable, match="Check that PostgreSQL runs") as caught:
            look(url)
        assert "s3cret" not in str(caught.value)


@pytest.mark.postgresql
def test_a_postgresql_database_that_does_not_exist_is_reported(postgresql_url):
    missing = sa.make_url(postgresql_url).set(database="helios_no_such_database")
    with pytest.raises(StoreMissing, match="createdb"):
        upgrade(missing.render_as_string(hide_password=False))


@pytest.mark.postgresql
def test_connections_that_postgresql_closed_are_replaced(postgresql_url):
    engine, other = open_database(postgresql_url), open_database(postgresql_url)
    with read_transaction(engine) as connection:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with write_transaction(other) as connection:
        connection.exec_driver_sql(f"SELECT pg_terminate_backend({backend}, 5000)")
    with read_transaction(engine) as connection:
        assert count_gaps(connection) == 0
    engine.dispose()
    other.dispose()


def test_cancelled_queries_give_their_connections_back(any_store):
    """C33."""

    def query():
        with read_transaction(any_store) as connection:
            return count_gaps(connection)

    async def cancel_many():
        for turn in range(200):
            task = asyncio.create_task(asyncio.to_thread(query))
            for _ in range(turn % 3):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(cancel_many())
    assert any_store.pool.checkedout() == 0
    assert query() == 0
