"""Fixtures for every test: fresh trace stores on SQLite and PostgreSQL, and a browser."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import sys
import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from hypothesis import settings

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # tests import `factories` by name

from needs import missing
from postgresql_server import NoServer, server_url

from scheduler.kernels.loader import load_kernels
from service.store.database import open_database, upgrade, write_transaction
from service.store.tables import metadata

pytest_plugins = ["chromium"]

# No example may fail for being slow; CI draws the same examples each time, a developer new ones.
settings.register_profile("helios", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("helios")


NEEDS_KERNELS = ("scheduler", "simulation", "engine", "e2e", "cli", "browser", "deploy")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the scheduler's kernels before the first test, unless they are cached: no test's time limit is for it."""
    here = pathlib.Path(__file__).parent
    if os.environ.get("NUMBA_DISABLE_JIT") == "1" or session.config.option.collectonly:
        return
    if {item.path.relative_to(here).parts[0] for item in session.items}.intersection(NEEDS_KERNELS):
        load_kernels()


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("template") / "helios.db"
    upgrade(str(path))
    return path


@pytest.fixture
def sqlite_url(tmp_path: pathlib.Path, _sqlite_template: pathlib.Path) -> str:
    """The address of a fresh, upgraded SQLite store."""
    path = tmp_path / "store" / "helios.db"
    path.parent.mkdir()
    shutil.copy(_sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def _postgresql_server() -> Iterator[sa.URL]:
    try:
        with server_url() as url:
            yield url
    except NoServer as error:
        missing(f"tests on PostgreSQL need a server (Debian: apt-get install postgresql): {error}")


@contextlib.contextmanager
def _new_database(server: sa.URL) -> Iterator[str]:
    """A private database, dropped at the end."""
    name = f"helios_test_{uuid.uuid4().hex}"
    admin = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with admin.connect() as connection:
            connection.exec_driver_sql(f'CREATE DATABASE "{name}" TEMPLATE template0')
            connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        admin.dispose()


@pytest.fixture
def empty_postgresql_url(_postgresql_server: sa.URL) -> Iterator[str]:
    """The address of a new database without tables; for tests that change the schema."""
    with _new_database(_postgresql_server) as url:
        yield url


@pytest.fixture(scope="module")
def module_postgresql_url(_postgresql_server: sa.URL) -> Iterator[str]:
    """The address of a database of the module's own, without tables; for tests that share one running server."""
    with _new_database(_postgresql_server) as url:
        yield url


@pytest.fixture(scope="session")
def _shared_postgresql(_postgresql_server: sa.URL) -> Iterator[tuple[str, str]]:
    with _new_database(_postgresql_server) as url:
        yield url, upgrade(url).head


@pytest.fixture
def postgresql_url(_shared_postgresql: tuple[str, str]) -> Iterator[str]:
    """The address of an upgraded PostgreSQL store without rows; the test carries the mark `postgresql`.

    One database serves the session, since making one takes half a second; its rows go after each test.
    """
    url, head = _shared_postgresql
    yield url
    engine = open_database(url)
    with write_transaction(engine) as connection:
        for table in metadata.tables.values():
            connection.execute(table.delete())
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{head}'")
    engine.dispose()


@pytest.fixture
def store(sqlite_url: str) -> Iterator[sa.Engine]:
    """A fresh SQLite store, writable."""
    engine = open_database(sqlite_url)
    yield engine
    engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def store_url(request: pytest.FixtureRequest) -> str:
    """The address of a fresh store, once on SQLite and once on PostgreSQL."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def any_store(store_url: str) -> Iterator[sa.Engine]:
    """A fresh writable store, once on SQLite and once on PostgreSQL."""
    engine = open_database(store_url)
    yield engine
    engine.dispose()
