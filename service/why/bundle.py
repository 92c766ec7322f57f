"""One zip about one recorded decision, for a bug report: rows, the log to re-execute it, settings, versions, words.

It holds no prompt, output, token id or credential: the trace keeps none of them, and what free text the store has
(errors, notes, actors, paths, trace ids) is left out.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
import pathlib
import platform
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from scheduler.errors import InvalidCheckpoint
from scheduler.replay import shapes_in
from service.store import tables
from service.store.decision_log import DamagedBlob, unpack_state
from service.store.engines import read_transaction
from service.why.errors import BundleUnusable, NotReplayable
from service.why.explanation import Explanation
from service.why.recorded import FenceName
from service.why.stored_log import StoredLog

FORMAT = 1
MANIFEST, SETTINGS, CATALOG, WORDS, NUMBERS = (
    "manifest.json",
    "settings.json",
    "catalog.json",
    "explain.txt",
    "explain.json",
)
ROWS = "rows/{}.json"
LOG = "log/{:012d}.bin"
_SECRET = re.compile(r"database|url|endpoint|credential|password|secret|key|file", re.IGNORECASE)
_BEHIND = 2
"""Frames in flight behind the last one: its completion comes before their successors are committed."""

Row = dict[str, Any]


def write_bundle(path: pathlib.Path, members: Mapping[str, bytes]) -> None:
    """The members as a zip at `path`, which must not exist. Raises BundleUnusable."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
    try:
        with path.open("xb") as file:
            file.write(made.getvalue())
    except FileExistsError as error:
        raise BundleUnusable(f"{path} exists already; name another file with --out") from error
    except OSError as error:
        raise BundleUnusable(f"{path}: cannot be written ({error.strerror}); name another file with --out") from error


def bundle_members(
    engine: sa.Engine, name: FenceName, around: int, found: Explanation, words: list[str]
) -> dict[str, bytes]:
    """Everything about the plan and `around` fences on either side. Raises StoreError."""
    first, last = max(1, name.fence - around), name.fence + around
    log, problem = _log_rows(engine, name, first, last)
    rows = {**_rows(engine, name.run_id, first, last), "decision_log": [_without_blob(row) for row in log]}
    runs = rows["engine_runs"]
    manifest = {
        "format": FORMAT,
        "run_id": name.run_id,
        "fence": name.fence,
        "first_fence": first,
        "last_fence": last,
        "made_by": found.replay.replayed_by,
        "recorded_by": found.replay.recorded_by,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "decision_log": problem or "whole",
    }
    return {
        MANIFEST: _json(manifest),
        SETTINGS: _json(runs[0]["settings"] if runs else {}),
        CATALOG: _json(_catalog(log, runs)),
        WORDS: ("\n".join(words) + "\n").encode(),
        NUMBERS: _json(dataclasses.asdict(found)),
        **{ROWS.format(table): _json(of_table) for table, of_table in rows.items()},
        **{LOG.format(row["first_call"]): _as_stored(row["blob"]) for row in log},
    }


def _as_stored(blob: object) -> bytes:
    """SQLite holds text and numbers in any column: what is damaged is kept for whoever looks into it."""
    return blob if isinstance(blob, bytes) else str(blob).encode()


def _log_rows(engine: sa.Engine, name: FenceName, first: int, last: int) -> tuple[list[Row], str | None]:
    """The rows to re-execute the fences from, and why there are none, or too few for the earlier ones."""
    problem = None
    try:
        start = StoredLog(engine, name.run_id).checkpoint_before(first).call
    except NotReplayable as error:
        problem = str(error)
        try:
            start = StoredLog(engine, name.run_id).checkpoint_before(name.fence).call
        except NotReplayable as why:
            return [], str(why)
    c = tables.decision_log.c
    query = sa.select(tables.decision_log).where(
        c.run_id == name.run_id, c.first_call >= start, c.first_fence <= last + _BEHIND
    )
    with read_transaction(engine) as connection:
        return [dict(row) for row in connection.execute(query.order_by(c.first_call)).mappings()], problem


def _rows(engine: sa.Engine, run_id: str, first: int, last: int) -> dict[str, list[Row]]:
    """Rows by table, without free text."""
    lanes = tables.plan_lanes
    requests = sa.select(lanes.c.request_id).where(lanes.c.run_id == run_id, lanes.c.fence.between(first, last))
    found: dict[str, list[Row]] = {}
    with read_transaction(engine) as connection:

        def read(table: sa.Table, *conditions: Any, clean: Callable[[Row], Row] = lambda row: row) -> None:
            of_run = [table.c.run_id == run_id] if "run_id" in table.c else []
            query = sa.select(table).where(*of_run, *conditions).order_by(*table.primary_key)
            found[table.name] = [clean(dict(row)) for row in connection.execute(query).mappings()]

        read(tables.engine_runs, clean=_clean_run)
        for table in (tables.plans, lanes, tables.plan_alternatives):
            read(table, table.c.fence.between(first, last))
        read(tables.requests, tables.requests.c.request_id.in_(requests), clean=_clean_request)
        read(tables.policy_applications)
        versions = {row["version"] for row in found["policy_applications"]}
        read(tables.policy_versions, tables.policy_versions.c.version.in_(versions), clean=_clean_version)
        read(tables.trace_gaps, clean=_clean_gap)
    return found


def _clean_run(row: Row) -> Row:
    settings = {name: _plain(value) for name, value in row["settings"].items() if not _SECRET.search(name)}
    return {**row, "host": "", "model": _plain(row["model"]), "settings": settings}


def _plain(value: Any) -> Any:
    """The value, unless it is a path or an address."""
    return "(left out)" if isinstance(value, str) and ("/" in value or "\\" in value or "@" in value) else value


def _clean_request(row: Row) -> Row:
    return {**row, "model": _plain(row["model"]), "error": None, "trace_id": None, "prefix_key": None}


def _clean_version(row: Row) -> Row:
    return {**row, "actor": "", "note": ""}


def _clean_gap(row: Row) -> Row:
    """What a database says of a value that it refused can hold the value."""
    return {**row, "reason": row["reason"].partition(":")[0]}


def _without_blob(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "blob"}


def _catalog(log: list[Row], runs: list[Row]) -> Row:
    """The graphs that the run chose among."""
    shapes: list[str] | None = None
    try:
        shapes = [shape.label for shape in shapes_in(unpack_state(log[0]["blob"]))] if log else None
    except (InvalidCheckpoint, DamagedBlob):  # of another version: the digest is known all the same
        shapes = None
    return {"digest": runs[0]["catalog_digest"] if runs else None, "shapes": shapes}


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False, default=_text).encode()


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)
