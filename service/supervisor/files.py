"""The files in `<data-dir>/run` that tell each child what it is to do."""

from __future__ import annotations

import datetime as dt
import os
import pathlib
import secrets

import msgspec

from service.settings import EngineStart, Settings
from service.supervisor.supervision import Role


def new_run_id(now: dt.datetime | None = None) -> str:
    """A name for one engine run that sorts by start time, such as `20261129T183000-5f0c2a9e`."""
    moment = (now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
    return f"{moment:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def write_settings(settings: Settings, role: Role) -> pathlib.Path:
    """What the recorder or the service reads: `run/<role>.json`."""
    return _write(settings.run_dir / f"{role}.json", msgspec.json.encode(settings))


def write_engine_start(start: EngineStart) -> pathlib.Path:
    """What one engine run reads: `run/engine.json`."""
    return _write(start.settings.run_dir / "engine.json", msgspec.json.encode(start))


def write_address(settings: Settings, address: str) -> pathlib.Path:
    """Where the server answers, for commands of the same user that are given no address: `run/address`."""
    return _write(settings.address_path, f"{address}\n".encode())


def _write(path: pathlib.Path, content: bytes) -> pathlib.Path:
    """Whole or not at all, and for this user alone: a database address can hold a password."""
    draft = path.with_suffix(".tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)
    return path
