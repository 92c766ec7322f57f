"""The engine's end of the connection: a ROUTER socket that never blocks the worker loop.

A client is one connection: the ROUTER gives each its own identity, so a worker that reconnects is a new client.
How the engine learns that a client is gone: ROUTER_MANDATORY makes a send to a closed connection fail, and the
kernel closes a dead process's connection at once, so `send` of tokens, or of an empty Events when there is
nothing to say (`probe`), tells within milliseconds. That needs no heartbeat of the service, whose event loop may
rightly be busy for seconds, and no socket monitor, whose events carry no identity. A client whose pipe is full
(it has not read for SEND_HIGH_WATER messages) counts as gone too: what it missed cannot be delivered.
"""

from __future__ import annotations

import logging
from typing import Any, Self

import msgspec
import zmq

from service.ipc.messages import Event, Events, ToEngine, to_engine_decoder

SEND_HIGH_WATER = 20_000
RECEIVE_HIGH_WATER = 20_000
RECEIVE_LIMIT = 1024
LINGER_MS = 300

# Plain numbers: the sums of flags that are enumerations are looked up anew each time.
_POLLIN, _NOBLOCK, _NOBLOCK_MORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_encoder = msgspec.msgpack.Encoder()

_log = logging.getLogger(__name__)


def message_waits(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be received now. The socket's descriptor tells of changes only, and asking takes them."""
    events: Any = socket.get(zmq.EVENTS)
    return bool(events & _POLLIN)


class EndpointUnusable(OSError):
    """The endpoint cannot be bound; the message says which and why."""


class EngineServer:
    """Binds `endpoint`; raises EndpointUnusable. All calls come from the worker thread and return at once."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        self.socket.set(zmq.SNDHWM, SEND_HIGH_WATER)
        self.socket.set(zmq.RCVHWM, RECEIVE_HIGH_WATER)
        self.socket.set(zmq.LINGER, LINGER_MS)
        self.malformed = 0
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise EndpointUnusable(f"cannot listen at {endpoint}: {error.strerror or error}") from error

    def receive(self) -> list[tuple[bytes, ToEngine]]:
        """Every message that waits, with its client, at most RECEIVE_LIMIT; the rest is there at the next call.

        A message that cannot be decoded is counted in `malformed`, logged and dropped.
        """
        received: list[tuple[bytes, ToEngine]] = []
        for _ in range(RECEIVE_LIMIT):
            if not message_waits(self.socket):  # the usual case, of which an exception would tell slowly
                break
            try:
                client, *parts = self.socket.recv_multipart(_NOBLOCK)
            except zmq.Again:
                break
            try:
                (body,) = parts
                received.append((client, to_engine_decoder.decode(body)))
            except (ValueError, msgspec.MsgspecError) as error:
                self._report(client, error)
        return received

    def send(self, client: bytes, events: list[Event]) -> bool:
        """Hand `events` over as one message; False when the client is gone or has stopped reading."""
        body = _encoder.encode(Events(events))
        try:
            self.socket.send(client, _NOBLOCK_MORE)
            self.socket.send(body, _NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def probe(self, client: bytes) -> bool:
        """Whether the client's connection still stands."""
        return self.send(client, [])

    def close(self) -> None:
        """Close; messages handed over just before still leave, for at most LINGER_MS. Idempotent."""
        self.socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report(self, client: bytes, error: Exception) -> None:
        self.malformed += 1
        if self.malformed & (self.malformed - 1) == 0:  # the 1st, 2nd, 4th, 8th, … so that a flood stays readable
            _log.warning(
                "dropped a message of client %s that cannot be decoded (%d so far): %s",
                client.hex(), self.malformed, error,
            )  # fmt: skip
