"""A bundle as a store: its rows in a database in memory, so that it is explained and audited like any other."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc, pool

from service.store import tables
from service.store.types import UtcDateTime
from service.why.bundle import FORMAT, LOG, MANIFEST, ROWS
from service.why.errors import BundleUnusable

LARGEST_MEMBER = 256 << 20
_TABLES = (
    tables.engine_runs,
    tables.plans,
    tables.plan_lanes,
    tables.plan_alternatives,
    tables.requests,
    tables.policy_applications,
    tables.policy_versions,
    tables.trace_gaps,
)


@contextlib.contextmanager
def bundle_engine(path: pathlib.Path) -> Iterator[sa.Engine]:
    """The bundle's rows and decision log behind an engine. Raises BundleUnusable."""
    engine = sa.create_engine("sqlite://", poolclass=pool.StaticPool)
    try:
        _load(engine, path)
        yield engine
    finally:
        engine.dispose()


def _load(engine: sa.Engine, path: pathlib.Path) -> None:
    try:
        with zipfile.ZipFile(path) as bundle, engine.begin() as connection:
            if json.loads(_member(bundle, MANIFEST))["format"] != FORMAT:
                raise BundleUnusable(f"{path}: a bundle of another version of Helios; use that one")
            tables.metadata.create_all(connection)
            for table in _TABLES:
                _insert(connection, table, json.loads(_member(bundle, ROWS.format(table.name))))
            log = json.loads(_member(bundle, ROWS.format("decision_log")))
            rows = [{**row, "blob": _member(bundle, LOG.format(row["first_call"]))} for row in log]
            _insert(connection, tables.decision_log, rows)
    except OSError as error:
        raise BundleUnusable(f"{path}: cannot be read ({error.strerror or error})") from error
    except (zipfile.BadZipFile, zipfile.LargeZipFile, KeyError, TypeError, ValueError, exc.SQLAlchemyError) as error:
        if isinstance(error, BundleUnusable):
            raise
        raise BundleUnusable(f"{path}: no bundle of helios bundle, or a damaged one") from error


def _member(bundle: zipfile.ZipFile, name: str) -> bytes:
    if bundle.getinfo(name).file_size > LARGEST_MEMBER:
        raise ValueError(f"{name} is too large")
    return bundle.read(name)


def _insert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    times = [column.name for column in table.columns if isinstance(column.type, UtcDateTime)]
    for row in rows:
        row.update({name: dt.datetime.fromisoformat(row[name]) for name in times if row.get(name) is not None})
    if rows:
        connection.execute(table.insert(), rows)
