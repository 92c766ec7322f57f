"""Where explaining commands read: the trace store, or a bundle."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import click
import sqlalchemy as sa

from service.cli.database import store_options
from service.cli.output import Function, fail
from service.cli.serve import resolve_settings
from service.store.database import check
from service.store.engines import open_database
from service.store.errors import DatabaseOlder, StoreError, StoreMissing
from service.why.bundle_reader import bundle_engine
from service.why.errors import WhyError


def source_options(function: Function) -> Function:
    """`--database`, `--data-dir` and `--bundle`."""
    function = store_options(function)
    return click.option(
        "--bundle", type=click.Path(path_type=pathlib.Path), help="Read this file of helios bundle instead of a store."
    )(function)


@contextlib.contextmanager
def trace_source(
    database: str | None, data_dir: pathlib.Path | None, bundle: pathlib.Path | None = None
) -> Iterator[sa.Engine]:
    """An engine that only reads; errors of the store and of bundles end the command with one line, exit 2."""
    if bundle is not None and (database is not None or data_dir is not None):
        fail("--bundle takes the place of --database and --data-dir; give one of them")
    try:
        if bundle is not None:
            with bundle_engine(bundle) as engine:
                yield engine
            return
        url = resolve_settings({"database": database, "data_dir": data_dir}).database
        _require_current(url)
        engine = open_database(url, readonly=True)
        try:
            yield engine
        finally:
            engine.dispose()
    except (StoreError, WhyError) as error:
        fail(str(error))


def _require_current(url: str) -> None:
    """Raises StoreError unless the store is at this version."""
    status = check(url)
    if status.state in ("missing", "empty"):
        raise StoreMissing(f"{status.address}: there is no trace store here; name one with --database or --data-dir")
    if status.state == "older":
        raise DatabaseOlder(
            f"{status.address}: at schema {status.revision}; helios db upgrade brings it to {status.head}"
        )
