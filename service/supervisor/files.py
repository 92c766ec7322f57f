"""The files in `<data-dir>/run` that tell each child what it is to do.

A disk that has filled up must not keep a process from starting again: a file that holds the right words already is
left alone, and one that cannot be written is handed over in memory.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from service.settings import EngineStart, Settings
from service.supervisor.supervision import Role

PRIVATE = 0o600


def new_run_id(now: dt.datetime | None = None) -> str:
    """A name for one engine run that sorts by start time, such as `20261129T183000-5f0c2a9e`."""
    moment = (now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
    return f"{moment:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


class StartFile(NamedTuple):
    """Where a child finds what it is to do, and the descriptors that it inherits for that."""

    path: str
    descriptors: tuple[int, ...] = ()


@contextlib.contextmanager
def start_file(settings: Settings, role: Role, content: Settings | EngineStart) -> Iterator[StartFile]:
    """`run/<role>.json` with this content, to be read by a child that is started within the block.

    Raises OSError with a message for the operator.
    """
    path = settings.run_dir / f"{role}.json"
    encoded = msgspec.json.encode(content)
    try:
        _write(path, encoded)
    except OSError as error:
        with _in_memory(path, encoded, error) as handed:
            yield handed
    else:
        yield StartFile(str(path))


@contextlib.contextmanager
def _in_memory(path: pathlib.Path, content: bytes, why: OSError) -> Iterator[StartFile]:
    """An anonymous file, where the system has them. Raises OSError, which tells why `path` could not be written."""
    try:
        descriptor = os.memfd_create(path.name)
    except (AttributeError, OSError):
        text = f"cannot write {path}: {why.strerror}; free disk space there, or make its folder writable"
        raise OSError(text) from why
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(content)
        yield StartFile(f"/proc/self/fd/{descriptor}", (descriptor,))


def write_address(settings: Settings, address: str) -> pathlib.Path:
    """Where the server answers, for commands of the same user that are given no address: `run/address`."""
    return _write(settings.address_path, f"{address}\n".encode())


def _write(path: pathlib.Path, content: bytes) -> pathlib.Path:
    """Whole or not at all, and for this user alone: a database address can hold a password. Raises OSError."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == content and path.stat().st_mode & 0o777 == PRIVATE:
            return path
    draft = path.with_suffix(".tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return path
