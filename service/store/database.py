"""The trace store's front door: open, upgrade and check it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import pathlib
from collections.abc import Iterator
from typing import Literal

import alembic.command
import alembic.config
import alembic.script
import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext

from service.store.engines import (
    database_url,
    open_database,
    parse_url,
    read_transaction,
    sqlite_path,
    write_transaction,
    writing_connection,
)
from service.store.errors import (
    DatabaseCorrupt,
    DatabaseForeign,
    DatabaseNewer,
    StoreMissing,
    StoreNotWritable,
)
from service.store.faults import shown, typed_faults
from service.store.tables import metadata

__all__ = [
    "DatabaseStatus",
    "check",
    "database_url",
    "migration_config",
    "open_database",
    "read_transaction",
    "upgrade",
    "write_transaction",
]

UPGRADE_WAIT_MS = 300_000
_ADVISORY_LOCK = 0x68656C696F73  # "helios"


@dataclasses.dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """What `check` or `upgrade` found. `revision` is None for a database without Helios's tables.

    `before` is the revision that `upgrade` started from; for `check` it equals `revision`.
    """

    address: str
    state: Literal["missing", "empty", "older", "current"]
    revision: str | None
    head: str
    before: str | None = None


def upgrade(url: str) -> DatabaseStatus:
    """Creates the store or brings it to this version, whole or not at all.

    Two starters do not collide: the second waits for the first (five minutes at most) and finds nothing to do.
    Raises StoreNotWritable, StoreUnavailable, StoreBusy, DatabaseNewer, DatabaseForeign, DatabaseCorrupt,
    InvalidDatabaseUrl.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        _make_room(sqlite_path(parsed))
    try:
        with _engine(parsed) as engine, typed_faults(parsed), _exclusive(engine) as connection:
            before = _checked_revision(connection, parsed)
            if before != _head():
                alembic.command.upgrade(migration_config(connection), "head")
    except StoreMissing as error:
        if parsed.get_backend_name() != "sqlite":
            raise
        raise StoreNotWritable(
            f"{shown(parsed)}: cannot create or open it. Name a file in a directory that this user may write, "
            "with --data-dir or --database"
        ) from error
    return DatabaseStatus(shown(parsed), "current", _head(), _head(), before)


def check(url: str, *, integrity: bool = False) -> DatabaseStatus:
    """What is at `url`, without changing it. `integrity` also reads a whole SQLite file for damage.

    Raises StoreUnavailable, DatabaseNewer, DatabaseForeign, DatabaseCorrupt, InvalidDatabaseUrl.
    """
    parsed = parse_url(url)
    head = _head()
    if parsed.get_backend_name() == "sqlite" and not sqlite_path(parsed).exists():
        return DatabaseStatus(shown(parsed), "missing", None, head)
    with _engine(parsed, readonly=True) as engine, read_transaction(engine) as connection:
        revision = _checked_revision(connection, parsed)
        if integrity and parsed.get_backend_name() == "sqlite":
            found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            if found != "ok":
                raise DatabaseCorrupt(f"{shown(parsed)}: damaged: {found}. Restore a copy of the file")
    if revision is None:
        return DatabaseStatus(shown(parsed), "empty", None, head)
    return DatabaseStatus(shown(parsed), "current" if revision == head else "older", revision, head, revision)


def migration_config(connection: sa.Connection | None = None) -> alembic.config.Config:
    """Alembic's configuration, in code; migrations run on `connection`, inside its transaction."""
    config = alembic.config.Config()
    spec = importlib.util.find_spec("migrations")
    assert spec is not None, "the migrations package is installed with the service"
    assert spec.origin is not None, "the migrations package has an __init__.py"
    config.set_main_option("script_location", str(pathlib.Path(spec.origin).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _head() -> str:
    head = alembic.script.ScriptDirectory.from_config(migration_config()).get_current_head()
    assert head is not None, "the migrations package holds at least one migration"
    return head


def _known_revisions() -> set[str]:
    script = alembic.script.ScriptDirectory.from_config(migration_config())
    return {revision.revision for revision in script.walk_revisions()}


def _checked_revision(connection: sa.Connection, url: sa.URL) -> str | None:
    """The database's revision, None when it is empty. Raises DatabaseNewer or DatabaseForeign."""
    heads = MigrationContext.configure(connection).get_current_heads()
    unknown = set(heads) - _known_revisions()
    if unknown or len(heads) > 1:
        raise DatabaseNewer(
            f"{shown(url)}: written by a newer Helios (schema {', '.join(sorted(unknown or heads))}, this version "
            f"knows up to {_head()}). Install that version, or name another database with --database"
        )
    if heads:
        return heads[0]
    ours = sorted(set(metadata.tables) & set(sa.inspect(connection).get_table_names()))
    if ours:
        raise DatabaseForeign(
            f"{shown(url)}: already holds tables named {', '.join(ours)} that Helios did not make. "
            "Name another database with --database"
        )
    return None


@contextlib.contextmanager
def _engine(url: sa.URL, *, readonly: bool = False) -> Iterator[sa.Engine]:
    engine = open_database(url, readonly=readonly)
    try:
        yield engine
    finally:
        engine.dispose()


@contextlib.contextmanager
def _exclusive(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A write transaction that waits long for its turn: another process may be upgrading a large database."""
    sqlite = engine.dialect.name == "sqlite"
    with writing_connection(engine) as connection:
        if sqlite:
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.execute(f"PRAGMA busy_timeout={UPGRADE_WAIT_MS}")
        with connection.begin():
            if not sqlite:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {UPGRADE_WAIT_MS}")
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
            yield connection


def _make_room(path: pathlib.Path) -> None:
    """Creates the file's directory. Raises StoreNotWritable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreNotWritable(
            f"{path.parent}: cannot create this directory ({error.strerror}). Name one that this user may write, "
            "with --data-dir or --database"
        ) from error
