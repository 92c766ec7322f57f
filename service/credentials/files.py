"""The credentials' file: JSON, one entry for each credential, for its owner alone, replaced as a whole.

    {"version": 1, "secret": "…", "credentials": [{"id": "…", "name": "ann", "role": "operator", "salt": "…",
     "digest": "…", "created_at": "2026-11-30T12:00:00Z", "expires_at": null}]}

`secret` signs the browsers' sessions. It and the digests are no keys, but whoever reads the secret could sign a
session for himself; so the file may be read by its owner alone, unless it is a mount that this process cannot change.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
import pathlib
import secrets
import stat
from collections.abc import Iterator
from typing import Annotated

import msgspec

from service.credentials.caller import Caller, Role
from service.credentials.errors import CredentialsUnusable, NameTaken, NoSuchName
from service.credentials.keys import new_key

VERSION = 1
MAX_BYTES = 1 << 20
MAX_NAME = 64
PRIVATE = 0o600
SECRET_BYTES = 32
HOW_TO_MAKE = "make one with: helios keys add --credentials-file {path} --name you --role operator"
Hexadecimal = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]+\Z", min_length=12, max_length=128)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_NAME = r"^(?!helios_[0-9a-f]{12}_)[A-Za-z0-9][A-Za-z0-9._@-]*\Z"
"""Inert wherever it is shown, and not a key that was put into the wrong place."""
Name = Annotated[str, msgspec.Meta(pattern=_NAME, max_length=MAX_NAME)]
NAME_RULE = f"1 to {MAX_NAME} letters, digits and . _ @ -, the first one a letter or digit"


class Credential(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One credential. `digest` is SHA-256 over salt and key; times are UTC."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{12}\Z")]
    name: Name
    role: Role
    salt: Hexadecimal
    digest: Digest
    created_at: dt.datetime
    expires_at: dt.datetime | None = None

    def is_valid(self, now: dt.datetime) -> bool:
        """Whether it is accepted at this time."""
        return self.expires_at is None or now < self.expires_at

    @property
    def caller(self) -> Caller:
        """Who it stands for."""
        return Caller(self.name, self.role)


class CredentialsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file holds."""

    version: int = VERSION
    secret: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64,}\Z", max_length=256)]
    credentials: tuple[Credential, ...] = ()


class Stamp(msgspec.Struct, frozen=True):
    """By which a changed file is told from the same one: device, inode, size, and times in ns."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


def stamp_of(path: pathlib.Path) -> Stamp:
    """The file's stamp now. Raises OSError."""
    found = path.stat()
    return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def read_credentials(path: pathlib.Path) -> CredentialsFile:
    """The checked content. Raises CredentialsUnusable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is refused, not waited for
        try:
            _check_mode(path, descriptor)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise CredentialsUnusable(f"there is no {path}; {HOW_TO_MAKE.format(path=path)}") from None
    except OSError as error:
        raise CredentialsUnusable(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise CredentialsUnusable(f"{path} is larger than a credentials file can be ({MAX_BYTES:,} bytes)")
    return decode(data, str(path))


def decode(data: bytes, where: str) -> CredentialsFile:
    """Raises CredentialsUnusable, without a word of the content: it might be a key in the wrong file."""
    try:
        found = msgspec.json.decode(data, type=CredentialsFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        at = str(error).partition(" - at ")[2] if isinstance(error, msgspec.ValidationError) else ""
        place = f" (at {at})" if at else ""
        raise CredentialsUnusable(f"{where} is no credentials file of helios keys{place}") from None
    if found.version != VERSION:
        raise CredentialsUnusable(f"{where} has version {found.version}, and this program reads version {VERSION}")
    names, ids = ({getattr(one, part) for one in found.credentials} for part in ("name", "id"))
    if min(len(names), len(ids)) < len(found.credentials):
        raise CredentialsUnusable(f"{where} has two credentials of one name or id")
    if any(time is not None and time.tzinfo is None for one in found.credentials for time in _times(one)):
        raise CredentialsUnusable(f"{where} has a time without a time zone")
    return found


def _times(one: Credential) -> tuple[dt.datetime | None, ...]:
    return one.created_at, one.expires_at


def _check_mode(path: pathlib.Path, descriptor: int) -> None:
    """A file of ours is for us alone; one that somebody else mounted may be read by others, but changed by none."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise CredentialsUnusable(f"{path} is no file")
    others = os.geteuid() not in (0, found.st_uid)
    mounted = others or bool(os.fstatvfs(descriptor).f_flag & os.ST_RDONLY)
    if found.st_mode & 0o022 or (found.st_mode & 0o077 and not mounted):
        raise CredentialsUnusable(f"{path} is open to other users of this machine; close it: chmod 600 {path}")


def add_credential(
    path: pathlib.Path, name: str, role: Role, now: dt.datetime, expires_at: dt.datetime | None = None
) -> tuple[Credential, str]:
    """A new credential and its key, the only time that it is known; makes the file at the first one.

    Raises NameTaken and CredentialsUnusable.
    """
    made = new_key()
    try:
        added = msgspec.convert(
            {"id": made.id, "name": name, "role": role, "salt": made.salt, "digest": made.digest,
             "created_at": now.replace(microsecond=0), "expires_at": expires_at},
            Credential,
        )  # fmt: skip
    except msgspec.ValidationError:
        raise CredentialsUnusable(f"a name is {NAME_RULE}") from None
    with _alone(path):
        current = read_credentials(path) if path.exists() else CredentialsFile(secret=secrets.token_hex(SECRET_BYTES))
        if any(one.name == name for one in current.credentials):
            raise NameTaken(f"{path} has a credential named {name} already; revoke it first, or choose another --name")
        write_credentials(path, msgspec.structs.replace(current, credentials=(*current.credentials, added)))
    return added, made.key


def revoke_credential(path: pathlib.Path, name: str) -> Credential:
    """Takes a credential out; its key and its sessions end with the next request. Raises NoSuchName."""
    with _alone(path):
        current = read_credentials(path)
        gone = next((one for one in current.credentials if one.name == name), None)
        if gone is None:
            known = ", ".join(one.name for one in current.credentials) or "none"
            raise NoSuchName(f"{path} has no credential named {name}; there is {known}")
        left = tuple(one for one in current.credentials if one is not gone)
        write_credentials(path, msgspec.structs.replace(current, credentials=left))
    return gone


@contextlib.contextmanager
def _alone(path: pathlib.Path) -> Iterator[None]:
    """Lets one change at a time at the files of this folder. Raises CredentialsUnusable."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise CredentialsUnusable(f"cannot use the folder of {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def write_credentials(path: pathlib.Path, content: CredentialsFile) -> None:
    """Replaces the file as a whole, on disk before it has its name. Raises CredentialsUnusable."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CredentialsUnusable(f"cannot write {path}: {error.strerror or error}") from error
