"""`helios sql`."""

from __future__ import annotations

import csv
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from service.cli.database import store_options
from service.cli.output import Command, fail, json_option, print_json, print_table
from service.cli.serve import resolve_settings
from service.store.errors import StoreError
from service.store.statements import limited, run_statement

Rows = Sequence[Sequence[Any]]


@click.command(
    "sql",
    cls=Command,
    epilog='Example: helios sql "SELECT kind, count(*) AS plans, avg(device_ms) AS ms FROM plans GROUP BY kind"',
)
@click.argument("statement")
@store_options
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table.")
@json_option
@click.option("--rows", type=click.IntRange(1, 10_000_000), default=1000, show_default=True, help="The most to print.")
@click.option(
    "--timeout", type=click.FloatRange(0, 86_400, min_open=True), default=30.0, show_default=True, help="Seconds."
)
def sql(
    statement: str,
    database: str | None,
    data_dir: pathlib.Path | None,
    as_csv: bool,
    as_json: bool,
    rows: int,
    timeout: float,
) -> None:
    """Ask the trace store one question in SQL. STATEMENT is one SELECT, or - to read it from standard input.

    It runs in a transaction that cannot write. What is left out is said on standard error.
    """
    if as_csv and as_json:
        fail("--csv and --json are two forms of the same answer; choose one")
    text = sys.stdin.read() if statement == "-" else statement
    try:
        url = resolve_settings({"database": database, "data_dir": data_dir}).database
        with run_statement(url, text, timeout) as answer:
            found, is_cut = limited(answer.rows, rows)
    except StoreError as error:
        fail(str(error))
    show = _print_csv if as_csv else _print_json if as_json else _print_table
    show(answer.columns, found)
    if is_cut:
        click.echo(f"helios sql: there are more than {rows} rows; --rows prints more", err=True)


def _print_table(columns: Sequence[str], rows: Rows) -> None:
    numbered = [f"{at}" for at in range(len(columns))]  # two columns of one name stay two
    print_table(columns, [dict(zip(numbered, row, strict=True)) for row in rows], keys=numbered)


def _print_csv(columns: Sequence[str], rows: Rows) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def _print_json(columns: Sequence[str], rows: Rows) -> None:
    """JSON has neither NaN nor infinities: they become text. A second column of one name gets its number behind it."""
    names = [
        name if name not in columns[:at] else f"{name}_{columns[:at].count(name) + 1}"
        for at, name in enumerate(columns)
    ]
    print_json([dict(zip(names, map(_json_value, row), strict=True)) for row in rows])


def _json_value(value: object) -> object:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
