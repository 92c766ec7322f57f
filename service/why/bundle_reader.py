"""A bundle as a store: its rows in a database in memory, so that it is explained and audited like any other."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import pathlib
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc, pool

from service.store import tables
from service.store.types import UtcDateTime
from service.why.bundle import FORMAT, LOG, MANIFEST, ROWS
from service.why.errors import BundleUnusable

LARGEST_BUNDLE = 512 << 20
"""Bytes of all members, unpacked. Of some 5 kB for each plan, the most that helios bundle writes is 20,001 plans."""
MOST_OBJECTS = 4_000_000
"""Objects and lists of one table: two bytes of text can take a hundred of memory."""
TABLES = (
    tables.engine_runs,
    tables.plans,
    tables.plan_lanes,
    tables.plan_alternatives,
    tables.requests,
    tables.policy_applications,
    tables.policy_versions,
    tables.trace_gaps,
)
_UNPACKED_BY = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    OverflowError,  # a whole number of more than 64 bits
    RuntimeError,  # an encrypted member, a method that zipfile does not know, JSON that is nested too deep
    exc.SQLAlchemyError,
)
"""What reading raises for a zip that somebody else made."""


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
            _require_readable(bundle, path)
            if json.loads(bundle.read(MANIFEST))["format"] != FORMAT:
                raise BundleUnusable(f"{path}: a bundle of another version of Helios; use that one")
            tables.metadata.create_all(connection)
            for table in TABLES:
                _insert(connection, table, _rows(bundle, table))
            log = [
                {**row, "blob": bundle.read(LOG.format(row["first_call"]))}
                for row in _rows(bundle, tables.decision_log)
            ]
            _insert(connection, tables.decision_log, log)
    except OSError as error:
        raise BundleUnusable(f"{path}: cannot be read ({error.strerror or error})") from error
    except _DAMAGED as error:
        raise BundleUnusable(f"{path}: no bundle of helios bundle, or a damaged one") from error


def _require_readable(bundle: zipfile.ZipFile, path: pathlib.Path) -> None:
    """Nothing is unpacked before all of it is known to fit; zipfile never unpacks more than a member says."""
    if sum(member.file_size for member in bundle.infolist()) > LARGEST_BUNDLE:
        raise BundleUnusable(f"{path}: too large for a bundle; its members unpack to more than {LARGEST_BUNDLE} bytes")
    if any(member.compress_type not in _UNPACKED_BY for member in bundle.infolist()):
        raise ValueError("a member is packed by another method")


def _rows(bundle: zipfile.ZipFile, table: sa.Table) -> list[dict[str, Any]]:
    """The rows of a table, with values of its columns' types: SQLite would keep any."""
    text = bundle.read(ROWS.format(table.name))
    if text.count(b"{") + text.count(b"[") > MOST_OBJECTS:
        raise ValueError(f"{table.name} has too many rows")
    rows = json.loads(text)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{table.name} is no list of rows")
    for column in table.columns:
        times, kinds = isinstance(column.type, UtcDateTime), _kinds(column.type)
        for row in rows:
            value = row.get(column.name)
            if value is None:
                continue
            if not isinstance(value, kinds):
                raise ValueError(f"{table.name}.{column.name} is no {kinds}")
            if times:
                row[column.name] = dt.datetime.fromisoformat(str(value))
    return rows


def _kinds(column_type: sa.types.TypeEngine[Any]) -> tuple[type, ...]:
    """What JSON may hold for a column."""
    if isinstance(column_type, UtcDateTime | sa.Text | sa.String):
        return (str,)
    if isinstance(column_type, sa.Float):
        return (int, float)
    if isinstance(column_type, sa.Boolean):
        return (bool,)
    return (int,) if isinstance(column_type, sa.Integer) else (object,)


def _insert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(table.insert(), rows)
