"""`helios db upgrade|check`."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

import click

from service.cli.output import Function, Group, fail, json_option, print_json
from service.cli.serve import resolve_settings
from service.store.database import DatabaseStatus, check, upgrade
from service.store.errors import StoreError


@click.group("db", cls=Group)
def database() -> None:
    """The trace store: bring it to this version, or look what state it is in.

    Example: helios db check
    """


def store_options(function: Function) -> Function:
    """`--database` and `--data-dir`, as in `helios serve`."""
    function = click.option(
        "--data-dir", type=click.Path(path_type=pathlib.Path), help="Data directory, as in helios serve."
    )(function)
    return click.option("--database", help="Trace store, as in helios serve.")(function)


@database.command("upgrade", epilog="Example: helios db upgrade --database postgresql://helios@db/helios")
@store_options
@json_option
def upgrade_command(database: str | None, data_dir: pathlib.Path | None, as_json: bool) -> None:
    """Create the store, or bring it to this version, whole or not at all."""
    status = _asked(upgrade, database, data_dir)
    if as_json:
        print_json(dataclasses.asdict(status))
    elif status.before == status.head:
        click.echo(f"{status.address}: already at schema {status.head}")
    else:
        click.echo(f"{status.address}: upgraded from {status.before or 'nothing'} to schema {status.head}")


@database.command("check", epilog="Example: helios db check --integrity --json")
@store_options
@click.option("--integrity", is_flag=True, help="Also read the whole of a SQLite file for damage.")
@json_option
def check_command(database: str | None, data_dir: pathlib.Path | None, integrity: bool, as_json: bool) -> None:
    """Say what is at the store's address, without changing it. Exits 1 unless it is at this version."""
    status = _asked(lambda url: check(url, integrity=integrity), database, data_dir)
    found = {**dataclasses.asdict(status), "integrity": _integrity(status, integrity)}
    if as_json:
        print_json(found)
    else:
        text = f"{status.address}: {status.state}, schema {status.revision or 'none'}, this version {status.head}"
        click.echo(f"{text}; integrity {found['integrity']}" if integrity else text)
    if status.state != "current":
        raise click.exceptions.Exit(1)


def _integrity(status: DatabaseStatus, asked: bool) -> str:
    """What a check that went well says of a store's pages; damage ends it with an error."""
    if not asked:
        return "not checked"
    if status.state == "missing":
        return "not checked: there is no database"
    if status.address.startswith("postgresql:"):
        return "not checked: only a SQLite file is read whole; PostgreSQL has pg_amcheck"
    return "ok"


def _asked(
    what: Callable[[str], DatabaseStatus], database: str | None, data_dir: pathlib.Path | None
) -> DatabaseStatus:
    try:
        return what(resolve_settings({"database": database, "data_dir": data_dir}).database)
    except StoreError as error:
        fail(str(error))
