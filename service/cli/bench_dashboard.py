"""`helios bench dashboard`: how fast the dashboard's pages are over a store of a million plans."""

from __future__ import annotations

import datetime as dt
import pathlib
import tempfile
import time
from typing import Any

import click

from service.cli.bench import machine
from service.cli.output import Command, fail, json_option, prepare_kernels, print_json, print_table, progress_bar
from service.load.browser import launched
from service.load.dashboard_views import views
from service.load.errors import LoadError
from service.load.million import MILLION, fill_store
from service.load.page_times import View, measure, rows
from service.load.served_store import served_store
from service.store.engines import open_database
from service.store.errors import InvalidDatabaseUrl, StoreError

COLUMNS: dict[str, str | None] = {
    "page": None,
    "paint, cold": "first_paint_cold",
    "paint, warm": "first_paint_warm",
    "of use, cold": "useful_cold",
    "of use, warm": "useful_warm",
    "complete, warm": "complete_warm",
    "answer": "interaction",
    "answer to": None,
}
"""Heads of the table, and the figures of a row that stand below them."""


@click.command("dashboard", cls=Command, epilog="Example: helios bench dashboard --rounds 5 --json")
@click.option(
    "--plans", type=click.IntRange(2000), default=MILLION, show_default=True, help="Of the store that is made."
)
@click.option("--database", help="A store that is there already, instead of making one; a run is added to it.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Each opens every page twice.")
@click.option("--page", "only", multiple=True, help="Only pages whose name begins so; may be repeated.")
@click.option("--chromium", help="The browser's program; else one on PATH.")
@json_option
def dashboard(
    plans: int, database: str | None, rounds: int, only: tuple[str, ...], chromium: str | None, as_json: bool
) -> None:
    """Make a store of a million plans, serve it on the simulated device, and open its pages in a real browser.

    For every page, in ms: until something is drawn, until it is of use, until it is complete, and until the answer to
    a click is drawn; cold with an empty cache, and warm. Run it on a quiet machine. It needs a Chromium and the Python
    package playwright.
    """
    prepare_kernels()
    with tempfile.TemporaryDirectory(prefix="helios-bench-") as name:
        folder = pathlib.Path(name)
        try:
            with launched(chromium) as browser:
                url, made_s = (database, None) if database else _make(folder / "helios.db", plans)
                chosen = [view for view in _views(url) if not only or view.name.startswith(only)]
                if not chosen:
                    fail("no page's name begins so")
                with served_store(folder, url) as address, progress_bar("opening", rounds * len(chosen)) as show:
                    samples, problems = measure(browser, address, chosen, rounds, show)
        except (LoadError, StoreError, InvalidDatabaseUrl) as error:
            fail(str(error), 1)
    document = {
        "machine": machine(),
        "plans": None if database else plans,
        "store_made_s": made_s,
        "rounds": rounds,
        "rows": rows(chosen, samples),
        "problems": problems,
    }
    if as_json:
        print_json(document)
    else:
        print_report(document)


def _make(path: pathlib.Path, plans: int) -> tuple[str, float]:
    begun = time.monotonic()
    fill_store(str(path), dt.datetime.now(dt.UTC), plans)
    return str(path), round(time.monotonic() - begun, 1)


def _views(url: str) -> list[View]:
    engine = open_database(url)
    try:
        return views(engine)
    finally:
        engine.dispose()


def print_report(document: dict[str, Any]) -> None:
    """A table for people: median and maximum in ms."""
    about = document["machine"]
    click.echo(f"{about['processor']}, {about['cores']} cores, Python {about['python']}")
    if document["plans"]:
        click.echo(f"{document['plans']:,} plans, made in {document['store_made_s']} s")
    click.echo("ms: median / maximum")
    print_table(tuple(COLUMNS), [_cells(row) for row in document["rows"]])
    for problem in document["problems"].values():
        click.echo(f"not measured in some round: {problem}", err=True)


def _cells(row: dict[str, Any]) -> dict[str, str]:
    """A row's figures as text, by the heads of COLUMNS."""
    texts = {"page": row["page"], "answer to": row["interaction"]}
    for head, name in COLUMNS.items():
        if name is not None:
            texts[head] = f"{row[f'{name}_p50_ms']:.0f} / {row[f'{name}_max_ms']:.0f}"
    return texts
