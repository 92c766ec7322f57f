"""A private PostgreSQL cluster after deploy/postgres/init, which asks the two roles for their passwords."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator

import sqlalchemy as sa
from needs import missing, program
from postgresql_server import NoServer, PrivateServer

from tests.deploy.stack_files import ROOT

PSQL = "PostgreSQL's init file is run by psql (Debian: apt-get install postgresql-client)"
INIT = ROOT / "deploy" / "postgres" / "init"


@contextlib.contextmanager
def private_cluster(secrets: pathlib.Path) -> Iterator[sa.URL]:
    """Its address, as the superuser, who needs no password. The passwords are made in `secrets`; ends the test without
    PostgreSQL's programs.
    """
    subprocess.run(["sh", ROOT / "deploy" / "make_secrets.sh", secrets], check=True, capture_output=True)
    try:
        with PrivateServer() as server:
            for file in sorted(INIT.iterdir()):
                done = run_init(server.url, file, secrets)
                assert done.returncode == 0, done.stderr
            _require_passwords(server)
            yield server.url
    except NoServer as error:
        missing(f"tests on PostgreSQL need its programs (Debian: apt-get install postgresql): {error}")


def run_init(url: sa.URL, file: pathlib.Path, secrets: os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    """As the image's start script runs it, but for where the secrets are."""
    psql = program("psql", instruction=PSQL)
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    options = ["-v", "ON_ERROR_STOP=1", "--no-password", "--no-psqlrc", "-v", f"secrets={secrets}"]
    return subprocess.run([psql, address, *options, "-f", file], capture_output=True, text=True, check=False)


def _require_passwords(server: PrivateServer) -> None:
    """Passwords over TCP, as the image's initdb has it for everybody."""
    rules = server._data / "pg_hba.conf"
    asks = "".join(f"host all {role} 127.0.0.1/32 scram-sha-256\n" for role in ("helios", "grafana"))
    rules.write_text(asks + rules.read_text())
    engine = sa.create_engine(server.url)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT pg_reload_conf()")
    engine.dispose()
