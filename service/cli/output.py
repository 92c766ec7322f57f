"""What commands share: the version, JSON or a table on standard output, and errors as one line."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NoReturn, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from scheduler.kernels.loader import kernels_are_cached, load_kernels

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


def print_table(
    columns: Sequence[str], rows: Sequence[Mapping[str, object]], keys: Sequence[str] | None = None
) -> None:
    """The rows' values of these columns; `keys` where a row names them otherwise."""
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in keys or columns))
    _console().print(table)


def print_rows(columns: Sequence[str], values: Sequence[Sequence[object]]) -> None:
    """An answer of any width, whole: a table where it fits, else a line for each value. Names may occur twice."""
    rows = [[_cell(value) for value in row] for row in values]
    widths = [max(map(_longest_word, cells)) for cells in zip(columns, *rows, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) <= _console().width:
        numbered = [f"{at}" for at in range(len(columns))]
        print_table(columns, [dict(zip(numbered, row, strict=True)) for row in rows], keys=numbered)
        return
    widest = max(map(len, columns))
    for number, row in enumerate(rows, 1):
        click.echo(f"row {number}")
        for name, value in zip(columns, row, strict=True):
            lines = value.replace("\n", "\n" + " " * (widest + 4))
            click.echo(f"  {name.ljust(widest)}  {lines}".rstrip())
    if not rows:
        click.echo(f"no rows of {', '.join(columns)}")


def _longest_word(text: str) -> int:
    """Characters; a narrower column would cut it."""
    return max(map(len, text.split()), default=0)


def _console() -> Console:
    width = None if sys.stdout.isatty() else 200
    return Console(width=width, highlight=False, markup=False, emoji=False)


@contextlib.contextmanager
def progress_bar(words: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, at a terminal only; yields what is told how much is done."""
    console = Console(stderr=True)
    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


def prepare_kernels() -> None:
    """Load the scheduler's compiled kernels, after a line on standard error when they must be compiled first."""
    if not kernels_are_cached():
        command = click.get_current_context().command_path
        click.echo(f"{command}: compiling the scheduler's kernels, once; it takes one to two minutes", err=True)
    load_kernels()


def fail(message: str, code: int = 2) -> NoReturn:
    """End the command with one line on standard error."""
    command = click.get_current_context().command_path
    click.echo(f"{command}: {' '.join(message.split())}", err=True)
    raise click.exceptions.Exit(code)


class _NamesItself(click.Command):
    """Gives its context to every usage error of its own arguments; click leaves it out of some."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise


class Command(_NamesItself):
    """A command whose usage errors name it."""


class Group(_NamesItself, click.Group):
    """A group of such commands."""

    command_class = Command


class WrongUsage(click.ClickException):
    """A usage error as one line that names the command and where its help is; exit 2."""

    exit_code = 2

    def __init__(self, error: click.UsageError) -> None:
        context = error.ctx
        self._command = context.command_path if context is not None else "helios"
        text = error.format_message()
        if isinstance(error, click.exceptions.NoArgsIsHelpError) and isinstance(error.cmd, click.Group):
            text = f"name a command: {', '.join(error.cmd.commands)}"
        super().__init__(" ".join(text.split()).rstrip("."))

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it, to standard error if `file` is not given."""
        click.echo(f"{self._command}: {self.message}; {self._command} --help says more", file=file, err=True)


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


def _cell(value: object) -> str:
    return "" if value is None else str(value)
