"""`helios sql`."""

from __future__ import annotations

import csv
import dataclasses
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from service.cli.database import store_options
from service.cli.output import Command, fail, json_option, print_json, print_rows
from service.cli.serve import resolve_settings
from service.store.answer_forms import inert
from service.store.errors import StoreError
from service.store.exports import load_parquet
from service.store.statements import distinct_names, json_text, limited, run_statement, within_size

Rows = Sequence[Sequence[Any]]


@click.command(
    "sql",
    cls=Command,
    epilog='Example: helios sql "SELECT kind, count(*) AS plans, avg(device_ms) AS ms FROM plans GROUP BY kind"',
)
@click.argument("statement")
@store_options
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table.")
@click.option("--raw", is_flag=True, help="With --csv: texts as they are, formulas of spreadsheets too.")
@json_option
@click.option(
    "--parquet", type=click.Path(dir_okay=False, path_type=pathlib.Path), help="Write a Parquet file instead."
)
@click.option("--rows", type=click.IntRange(1, 10_000_000), default=1000, show_default=True, help="The most to print.")
@click.option(
    "--timeout", type=click.FloatRange(0, 86_400, min_open=True), default=30.0, show_default=True, help="Seconds."
)
def sql(
    statement: str,
    database: str | None,
    data_dir: pathlib.Path | None,
    as_csv: bool,
    raw: bool,
    as_json: bool,
    parquet: pathlib.Path | None,
    rows: int,
    timeout: float,
) -> None:
    """Ask the trace store one question in SQL. STATEMENT is one SELECT, or - to read it from standard input.

    It runs in a transaction that cannot write. What is left out is said on standard error. Rows that are too wide for a
    table are printed one under another. In CSV a text that a spreadsheet could take for a formula gets an apostrophe in
    front, as clients choose ids and names; --raw leaves it as it is.
    """
    if as_csv + as_json + (parquet is not None) > 1:
        fail("--csv, --json and --parquet are forms of the same answer; choose one")
    if raw and not as_csv:
        fail("--raw says how --csv writes texts; add --csv, or leave --raw out")
    text = sys.stdin.read() if statement == "-" else statement
    try:
        url = resolve_settings({"database": database, "data_dir": data_dir}).database
        with run_statement(url, text, timeout) as found:
            answer = dataclasses.replace(found, rows=within_size(found.rows, rows))
            if parquet is not None:
                count, is_cut = load_parquet().write_parquet(parquet, answer, rows)
            else:
                printed, is_cut = limited(answer.rows, rows)
    except StoreError as error:
        fail(str(error))
    if parquet is not None:
        click.echo(f"{parquet}: {count} rows of {len(answer.columns)} columns")
    elif as_csv:
        _print_csv(answer.columns, printed, raw=raw)
    else:
        show = _print_json if as_json else _print_table
        show(answer.columns, printed)
    if is_cut:
        click.echo(f"helios sql: there are more than {rows} rows; --rows prints more", err=True)


def _print_table(columns: Sequence[str], rows: Rows) -> None:
    print_rows(columns, [[_text_value(value) for value in row] for row in rows])


def _print_csv(columns: Sequence[str], rows: Rows, *, raw: bool) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in (columns, *rows):
        texts = [_text_value(value) for value in row]
        writer.writerow(texts if raw else [inert(text) for text in texts])


def _text_value(value: object) -> object:
    """PostgreSQL's driver makes Python's objects of JSON and arrays; text has JSON for them."""
    return json_text(value) if isinstance(value, dict | list) else value


def _print_json(columns: Sequence[str], rows: Rows) -> None:
    """JSON has neither NaN nor infinities: they become text."""
    names = distinct_names(columns)
    print_json([dict(zip(names, map(_json_value, row), strict=True)) for row in rows])


def _json_value(value: object) -> object:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
