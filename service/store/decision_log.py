"""The blobs of `decision_log`, as the recorder writes them and `helios explain` reads them.

A row of calls holds consecutive pieces, each the msgpack array that the engine wrote in one iteration (see
service.journal.calls), behind a four-byte length. A checkpoint's row holds what RequestScheduler.checkpoint() gave.
Both are compressed by zlib.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

LARGEST_CHUNK = 256 << 10
"""Bytes of one row's calls, uncompressed; a reader holds one row at a time."""
LARGEST_STATE = 256 << 20
_LENGTH = struct.Struct(">I")


class DamagedBlob(ValueError):
    """A blob that does not hold what its row says."""


def pack_calls(pieces: Iterable[bytes]) -> bytes:
    """The pieces as one blob."""
    return zlib.compress(b"".join(part for piece in pieces for part in (_LENGTH.pack(len(piece)), piece)), 1)


def unpack_calls(blob: bytes) -> list[bytes]:
    """The pieces of pack_calls(). Raises DamagedBlob."""
    data = unpack_state(blob)
    pieces, at = [], 0
    while at < len(data):
        start = at + _LENGTH.size
        if start > len(data):
            raise DamagedBlob("a piece of the decision log is cut off")
        at = start + _LENGTH.unpack_from(data, at)[0]
        if at > len(data):
            raise DamagedBlob("a piece of the decision log is cut off")
        pieces.append(data[start:at])
    return pieces


def unpack_state(blob: bytes) -> bytes:
    """What was compressed. Raises DamagedBlob, also of what is no bytes: SQLite holds text in any column."""
    if not isinstance(blob, bytes):
        raise DamagedBlob("a blob of the decision log is no bytes")
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(blob, LARGEST_STATE)
    except zlib.error as error:
        raise DamagedBlob(f"a blob of the decision log cannot be decompressed: {error}") from error
    if not reader.eof:
        raise DamagedBlob("a blob of the decision log is cut off or too large")
    return data
