"""What the service and its reader say to each other, each message whole, on a socket of its own for each call."""

from __future__ import annotations

import asyncio
import socket

import msgspec

from service.credentials.caller import Caller

_LENGTH_BYTES = 8
READY = b"+"
"""The one byte that comes with a call's socket."""


class Start(msgspec.Struct, frozen=True):
    """What a reader is told first: the store's address, the folder of the previews, and whether the server prepared
    graphs that read a prompt beside running answers.
    """

    database: str
    previews_dir: str
    mixed_prefill: bool = True


class Call(msgspec.Struct, frozen=True):
    """A callback that the service has checked: what was posted, and whose it is."""

    headers: list[tuple[bytes, bytes]]
    body: bytes
    caller: Caller | None = None


class Answer(msgspec.Struct, frozen=True):
    """What Dash answers."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class OtherEndClosed(Exception):
    """The other end closed the socket before its message was whole."""


async def send(connection: socket.socket, message: Call | Answer) -> None:
    """Sends one message on a non-blocking socket. Raises OSError."""
    payload = msgspec.msgpack.encode(message)
    await asyncio.get_running_loop().sock_sendall(connection, len(payload).to_bytes(_LENGTH_BYTES, "big") + payload)


async def receive_call(connection: socket.socket) -> Call:
    """The call of a new socket. Raises OtherEndClosed and OSError."""
    return msgspec.msgpack.decode(await _payload(connection), type=Call)


async def receive_answer(connection: socket.socket) -> Answer:
    """The answer to what was sent. Raises OtherEndClosed and OSError."""
    return msgspec.msgpack.decode(await _payload(connection), type=Answer)


async def _payload(connection: socket.socket) -> memoryview:
    size = int.from_bytes(await _exactly(connection, _LENGTH_BYTES), "big")
    return await _exactly(connection, size)


async def _exactly(connection: socket.socket, size: int) -> memoryview:
    loop, found = asyncio.get_running_loop(), memoryview(bytearray(size))
    filled = 0
    while filled < size:
        received = await loop.sock_recv_into(connection, found[filled:])
        if received == 0:
            raise OtherEndClosed("the other end closed the socket before its message was whole")
        filled += received
    return found
