"""A PostgreSQL server for tests: the one that the environment names, one that answers locally, or a private one.

HELIOS_TEST_POSTGRESQL_URL names a server and a database to connect to; the user must be allowed to create databases.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import exc

LOCAL_URL = "postgresql+psycopg://postgres@127.0.0.1:5432/test"
_START_LIMIT_S = 60


class NoServer(Exception):
    """No PostgreSQL is reachable and none can be started; the message says why."""


@contextlib.contextmanager
def server_url() -> Iterator[sa.URL]:
    """The address of a database on a running server. Raises NoServer."""
    named = os.environ.get("HELIOS_TEST_POSTGRESQL_URL")
    url = sa.make_url(named or LOCAL_URL).set(drivername="postgresql+psycopg")
    problem = _problem(url)
    if problem is None:
        yield url
    elif named:
        raise NoServer(f"HELIOS_TEST_POSTGRESQL_URL: {problem}")
    else:
        with PrivateServer() as private:
            yield private.url


def _problem(url: sa.URL) -> str | None:
    """Why no database can be created at `url`, or None."""
    engine = sa.create_engine(url, connect_args={"connect_timeout": 3})
    try:
        with engine.connect() as connection:
            allowed = connection.exec_driver_sql(
                "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
            ).scalar_one()
        return None if allowed else "this user may not create databases"
    except exc.DBAPIError as error:
        return str(error.orig).strip()
    finally:
        engine.dispose()


class PrivateServer:
    """A server of its own directory, port and unprivileged user, which a test may kill and start again.

    Raises NoServer.
    """

    def __init__(self) -> None:
        self._programs = _programs()
        self._user = _unprivileged_user()
        self._directory = pathlib.Path(tempfile.mkdtemp(prefix="helios-postgresql-"))
        self._server: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = sa.make_url(f"postgresql+psycopg://postgres@127.0.0.1:{self._port}/postgres")

    def __enter__(self) -> PrivateServer:
        try:
            if self._user is not None:
                shutil.chown(self._directory, self._user)
            _run([self._programs / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-N"], self._user)
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(10)
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Start it, also after a kill, and wait until it answers."""
        address = ["-h", "127.0.0.1", "-p", str(self._port), "-k", self._directory, "-F"]
        command = [str(a) for a in (self._programs / "postgres", "-D", self._data, *address)]
        log = self._directory / "log"
        with log.open("ab") as output:
            self._server = subprocess.Popen(
                command, user=self._user, stdout=output, stderr=output, cwd="/", start_new_session=True
            )
        _wait_until_ready(self.url, self._server, log)

    def kill(self) -> None:
        """SIGKILL to the server and to each of its processes, which are a session of their own."""
        if self._server is not None:
            for signalled in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    signalled(self._server.pid, signal.SIGKILL)
            self._server.wait()

    @property
    def _data(self) -> pathlib.Path:
        return self._directory / "data"


def _programs() -> pathlib.Path:
    """The directory of initdb and postgres. Raises NoServer."""
    found = shutil.which("initdb")
    places = [pathlib.Path(found).parent] if found else []
    places += sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise NoServer("no PostgreSQL answers at 127.0.0.1:5432 and its programs (initdb, postgres) are not installed")


def _unprivileged_user() -> str | None:
    """Whom to run the server as, None for the current user. initdb refuses root. Raises NoServer."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise NoServer(f"{getpass.getuser()} may not run PostgreSQL and there is no unprivileged user to run it as")


def _run(command: list[object], user: str | None) -> None:
    done = subprocess.run(
        [str(part) for part in command], user=user, capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode:
        raise NoServer(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")


def _wait_until_ready(url: sa.URL, server: subprocess.Popen[bytes], log: pathlib.Path) -> None:
    limit = time.monotonic() + _START_LIMIT_S
    while (problem := _problem(url)) is not None:
        if server.poll() is not None or time.monotonic() > limit:
            raise NoServer(f"the private server did not start: {problem}; its log: {log.read_text()[-2000:]}")
        time.sleep(0.05)
