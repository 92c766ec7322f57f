"""`helios db upgrade|check|prune`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import pathlib
import time
from collections import Counter
from collections.abc import Callable

import click

from service.cli.output import Function, Group, fail, json_option, print_json, progress_bar
from service.cli.serve import TYPES, description, resolve_settings
from service.settings import Settings
from service.store.database import DatabaseStatus, check, open_database, read_transaction, upgrade
from service.store.errors import StoreError
from service.store.retention import PLANS_KEPT, Limits, Pruner, plans_to_delete
from service.store.size import used_bytes

_TO_DO = {
    "missing": "; helios db upgrade or helios serve creates it",
    "empty": "; helios db upgrade or helios serve fills it with tables",
    "older": "; helios db upgrade brings it to this version",
}


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
        text += f"; integrity {found['integrity']}" if integrity else ""
        click.echo(text + _TO_DO.get(status.state, ""))
    if status.state != "current":
        raise click.exceptions.Exit(1)


@database.command("prune", epilog="Example: helios db prune --retention-days 7 --retention-bytes 2GiB")
@store_options
@click.option("--retention-days", type=TYPES["retention_days"], help=description("retention_days"))
@click.option("--retention-bytes", type=TYPES["retention_bytes"], help=description("retention_bytes"))
@json_option
def prune_command(
    database: str | None,
    data_dir: pathlib.Path | None,
    retention_days: int | None,
    retention_bytes: int | None,
    as_json: bool,
) -> None:
    """Delete what the store may no longer keep, as the server does on its own; it may run meanwhile.

    Limits that are not given are those of helios serve. What is deleted makes room for new rows; a SQLite file does not
    get smaller by it. The last 1,000 plans of a run that has not ended stay whatever the limits, and so does a plan in
    flight. PostgreSQL counts the age in whole days (UTC), and drops a day at once.
    """
    given = {"retention_days": retention_days, "retention_bytes": retention_bytes}
    try:
        settings = resolve_settings({"database": database, "data_dir": data_dir, **given})
        status = check(settings.database)
        if status.state != "current":
            fail(f"{status.address}: its state is {status.state}; `helios db upgrade` brings it to this version first")
        done = _prune(settings)
    except StoreError as error:
        fail(str(error))
    if as_json:
        print_json({"address": status.address, **done})
        return
    counts = ", ".join(f"{done[name]} {text}" for name, text in _PRUNED.items())
    click.echo(f"{status.address}: deleted {counts}; {done['used_bytes'] / 1e6:.1f} MB are in use")
    if done["plans_over_limits"]:
        click.echo(
            f"about {done['plans_over_limits']} plans are over the limits and stay: those in flight, and the last"
            f" {PLANS_KEPT} of each run that has not ended, which a server may still write to"
        )


_PRUNED = {"plans": "plans", "requests": "requests", "log_rows": "rows of the decision log", "minutes": "roll-ups"}


def _prune(settings: Settings) -> dict[str, int]:
    """Delete step by step, with pauses for whoever writes. Returns rows by kind, and the bytes in use then."""
    limits = Limits(settings.retention_days, settings.retention_bytes)
    engine = open_database(settings.database)
    total: Counter[str] = Counter()
    try:
        now = dt.datetime.now(dt.UTC)
        pruner = Pruner(engine, limits)
        with progress_bar("deleting plans", plans_to_delete(engine, limits, now)) as show:
            while not (step := pruner.step(now)).is_nothing:
                total.update({name: getattr(step, name) for name in _PRUNED})
                show(total["plans"])
                time.sleep(pruner.pause_s)
        left = {"plans_over_limits": plans_to_delete(engine, limits, now)}
        with read_transaction(engine) as connection:
            return {name: total[name] for name in _PRUNED} | {"used_bytes": used_bytes(connection)} | left
    finally:
        engine.dispose()


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
