"""What commands share: the version, JSON or a table on standard output, and errors as one line."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console
from rich.table import Table

Function = TypeVar("Function", bound=Callable[..., Any])

try:
    VERSION = importlib.metadata.version("helios-serving")
except importlib.metadata.PackageNotFoundError:  # run from a folder that was never installed
    VERSION = "unknown"


def json_option(function: Function) -> Function:
    """`--json`, passed to the command as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(function)


def print_json(value: object) -> None:
    """One JSON document; times are RFC 3339."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_plain, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """The rows' values of these columns."""
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False, markup=False, emoji=False).print(table)


def fail(message: str, code: int = 2) -> NoReturn:
    """End the command with one line on standard error."""
    command = click.get_current_context().command_path
    click.echo(f"{command}: {' '.join(message.split())}", err=True)
    raise click.exceptions.Exit(code)


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


def _cell(value: object) -> str:
    return "" if value is None else str(value)
