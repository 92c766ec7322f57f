"""`helios journal dump|verify`."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import click
from rich.console import Console

from service.cli.output import Function, Group, fail, json_option, print_json
from service.journal.commands import describe, dump, verify
from service.journal.errors import JournalError
from service.settings import default_data_dir


@click.group("journal", cls=Group)
def journal() -> None:
    """What the engine wrote down before anyone saw it. Both commands only read, also while the server runs.

    Example: helios journal verify
    """


def data_dir_option(function: Function) -> Function:
    """`--data-dir`, as in `helios serve`."""
    return click.option(
        "--data-dir", type=click.Path(path_type=pathlib.Path), help="Data directory, as in helios serve."
    )(function)


@journal.command("dump", epilog="Example: helios journal dump --json | grep PlanCommitted")
@data_dir_option
@json_option
def dump_command(data_dir: pathlib.Path | None, as_json: bool) -> None:
    """Print every record, oldest first, one a line; with --json each line is an object."""
    try:
        for record in dump(_directory(data_dir)):
            click.echo(json.dumps(record, ensure_ascii=False) if as_json else _text(record))
    except JournalError as error:
        fail(str(error))


@journal.command("verify", epilog="Example: helios journal verify --data-dir ./data --json")
@data_dir_option
@json_option
def verify_command(data_dir: pathlib.Path | None, as_json: bool) -> None:
    """Read all of it and say whether anything is damaged or missing. Exits 1 if so."""
    try:
        with Console(stderr=True).status("reading the journal"):
            found = verify(_directory(data_dir))
    except JournalError as error:
        fail(str(error))
    if as_json:
        print_json({**dataclasses.asdict(found), "whole": found.whole})
    else:
        click.echo("\n".join(describe(found)))
    if not found.whole:
        raise click.exceptions.Exit(1)


def _directory(data_dir: pathlib.Path | None) -> pathlib.Path:
    return (data_dir or default_data_dir()) / "journal"


def _text(record: dict[str, Any]) -> str:
    name = record.get("record") or "gap"
    rest = {key: value for key, value in record.items() if key not in ("record", "run_id")}
    return " ".join([str(record.get("run_id")), name, *(f"{key}={json.dumps(rest[key])}" for key in rest)])
