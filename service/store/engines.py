"""Addresses, SQLAlchemy engines and transactions of the trace store.

On SQLite a transaction that reads first and writes later fails at once with "database is locked", whatever the
timeout. So `write_transaction` opens with BEGIN IMMEDIATE, and any other transaction cannot write: a forgotten
`write_transaction` shows in the first test, not under load.
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import urllib.parse
from collections.abc import Iterator
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import event, exc

from service.store.errors import InvalidDatabaseUrl
from service.store.faults import typed_faults
from service.store.liveness import watch_file
from service.store.read_limits import within_limit

BUSY_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 5
TCP_TIMEOUT_MS = 20_000
WAL_SIZE_LIMIT_BYTES = 64 << 20
_WRITES = "helios_writes"


class StoreSettings(Protocol):
    """The two settings that say where the store is."""

    @property
    def database(self) -> str: ...

    @property
    def data_dir(self) -> str: ...


def database_url(settings: StoreSettings) -> str:
    """The store's address: `settings.database`, or `<data-dir>/helios.db` when that is empty.

    Raises InvalidDatabaseUrl.
    """
    if settings.database:
        return parse_url(settings.database).render_as_string(hide_password=False)
    path = pathlib.Path(settings.data_dir).absolute() / "helios.db"
    return sa.URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def parse_url(text: str) -> sa.URL:
    """A database address: `sqlite:///FILE`, `postgresql://USER@HOST/NAME` or the path of a SQLite file.

    Paths become absolute. Raises InvalidDatabaseUrl.
    """
    help_text = "write sqlite:////absolute/path/helios.db, postgresql://user@host/name, or the path of a file"
    if "\0" in text or not text.strip():
        raise InvalidDatabaseUrl(f"the database address is empty or holds a NUL; {help_text}")
    if "://" not in text:
        return sa.URL.create("sqlite", database=str(pathlib.Path(text).absolute()))
    try:
        url = sa.make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        raise InvalidDatabaseUrl(f"the database address cannot be read; {help_text}") from error
    if url.drivername in {"postgres", "postgresql"}:
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername == "postgresql+psycopg":
        return url
    if url.get_backend_name() != "sqlite" or url.drivername not in {"sqlite", "sqlite+pysqlite"}:
        raise InvalidDatabaseUrl(f"{url.drivername}: Helios uses SQLite or PostgreSQL; {help_text}")
    if url.host or not url.database or url.database == ":memory:" or url.query:
        raise InvalidDatabaseUrl(
            f"{url.render_as_string(hide_password=True)}: three processes share the store, so it must be a plain file; "
            f"{help_text}"
        )
    return url.set(database=str(pathlib.Path(url.database).absolute()))


def sqlite_path(url: sa.URL) -> pathlib.Path:
    """The file of a SQLite address that `parse_url` returned."""
    return pathlib.Path(str(url.database))


def open_database(url: str | sa.URL, *, readonly: bool = False) -> sa.Engine:
    """An engine for the store; connects at first use. A read-only engine's transactions refuse to write.

    Raises InvalidDatabaseUrl.
    """
    parsed = parse_url(url) if isinstance(url, str) else url
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(parsed, readonly)
    return _open_postgresql(parsed, readonly)


@contextlib.contextmanager
def read_transaction(bind: sa.Engine | sa.Connection) -> Iterator[sa.Connection]:
    """One consistent view for reading, rolled back at the end; a Connection is passed through as it is.

    Raises StoreError for what the database cannot do, ReadTooLong where the engine is `limited`.
    """
    if isinstance(bind, sa.Connection):
        yield bind
        return
    options = {"postgresql_readonly": True} if bind.dialect.name == "postgresql" else {}
    with typed_faults(bind.url), bind.connect() as plain:
        connection = plain.execution_options(**options)
        with within_limit(bind, connection):
            yield connection


@contextlib.contextmanager
def write_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that holds the write lock from its start; commits at the end, rolls back on any error.

    Raises StoreError for what the database cannot do (StoreBusy after 10 s without the lock).
    """
    with typed_faults(engine.url), writing_connection(engine) as connection, connection.begin():
        yield connection


@contextlib.contextmanager
def writing_connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection whose transactions may write; for `write_transaction` and `upgrade`."""
    with engine.connect() as connection:
        yield connection.execution_options(**{_WRITES: True})


def _open_sqlite(url: sa.URL, readonly: bool) -> sa.Engine:
    target = url
    if readonly:
        uri = "file:" + urllib.parse.quote(str(url.database))
        target = url.set(database=uri).update_query_dict({"mode": "ro", "uri": "true"})
    # The pool waits a little longer than the lock, so that a locked database is reported as such.
    engine = sa.create_engine(
        target, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000}, pool_timeout=BUSY_TIMEOUT_MS / 1000 + 5
    )

    file = watch_file(engine, sqlite_path(url))

    @event.listens_for(engine, "do_connect")
    def check_file(*_: object) -> None:
        file.check()  # SQLite would make a new, empty file

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        file.opened()
        connection.isolation_level = None  # the begin hook below starts transactions, not the driver
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA foreign_keys=OFF")
        if readonly:
            connection.execute("PRAGMA query_only=ON")
            return
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA journal_size_limit={WAL_SIZE_LIMIT_BYTES}")

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        writes = bool(connection.get_execution_options().get(_WRITES)) and not readonly
        if writes:
            file.check()
        if not readonly:
            connection.exec_driver_sql(f"PRAGMA query_only={'OFF' if writes else 'ON'}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _open_postgresql(url: sa.URL, readonly: bool) -> sa.Engine:
    given = url.query.get("options", ())
    options = [f"-c lock_timeout={BUSY_TIMEOUT_MS}", "-c timezone=UTC", *([given] if isinstance(given, str) else given)]
    if readonly:
        options.append("-c default_transaction_read_only=on")
    arguments: dict[str, Any] = {"options": " ".join(options), "application_name": "helios"}
    limits = {"connect_timeout": CONNECT_TIMEOUT_S, "tcp_user_timeout": TCP_TIMEOUT_MS}
    arguments.update({name: value for name, value in limits.items() if name not in url.query})
    return sa.create_engine(url, connect_args=arguments, pool_pre_ping=True)
