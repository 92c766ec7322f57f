"""The engine's ROUTER against clients that misbehave, vanish or do not read."""

from __future__ import annotations

import time

import pytest
import zmq

from service.ipc.messages import (
    EngineStopping,
    Events,
    Hello,
    Tokens,
    encode,
    events_decoder,
)
from service.ipc.server import EndpointUnusable, EngineServer


@pytest.fixture
def dealer(endpoint):
    context = zmq.Context()
    server = EngineServer(endpoint)
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RCVTIMEO, 20_000)
    socket.connect(endpoint)
    yield server, socket
    socket.close()
    server.close()
    context.term()


def received(server: EngineServer, enough) -> list:
    """Everything received until `enough(messages)`; zmq's own poll waits for the socket."""
    messages = []
    while not enough(messages):
        assert server.socket.poll(20_000)
        messages += server.receive()
    return messages


@pytest.mark.parametrize(
    "bad",
    [
        [b""],
        [b"\xc1"],
        [b"\x80"],
        [encode({"type": "no_such"})],
        [encode({"type": "submit"})],
        [encode({"type": "cancel", "request_id": 1, "reason": "abort"})],
        [b"two", b"parts"],
        [b"", b""],
        [encode(Tokens("a", [], 0, 0))],
    ],
)
def test_a_malformed_message_is_counted_and_the_next_one_is_served(dealer, bad):
    server, socket = dealer
    socket.send_multipart(bad)
    socket.send(encode(Hello("w")))
    messages = received(server, lambda got: got)
    assert [message for _, message in messages] == [Hello("w")]
    assert server.malformed == 1


def test_a_client_that_closed_its_connection_is_noticed(dealer, endpoint):
    server, socket = dealer
    socket.send(encode(Hello("w")))
    ((client, _),) = received(server, lambda got: got)
    assert server.probe(client)
    assert events_decoder.decode(socket.recv()) == Events([])
    socket.close()
    deadline = time.monotonic() + 20
    while server.probe(client):  # the socket's thread sees the close a moment later
        assert time.monotonic() < deadline
    assert not server.send(client, [EngineStopping()])


def test_a_client_that_was_never_connected_is_gone(dealer):
    assert not dealer[0].probe(b"nobody")


def test_a_client_that_does_not_read_never_blocks_the_engine(endpoint, monkeypatch):
    monkeypatch.setattr("service.ipc.server.SEND_HIGH_WATER", 1)
    context = zmq.Context()
    server = EngineServer(endpoint)
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RCVHWM, 1)
    socket.connect(endpoint)
    socket.send(encode(Hello("w")))
    ((client, _),) = received(server, lambda got: got)
    big = [Tokens("a", list(range(10_000)), 1, 1)]
    assert any(not server.send(client, big) for _ in range(10_000))
    socket.close()
    server.close()
    context.term()


def test_an_endpoint_that_cannot_be_bound_is_named(tmp_path):
    with pytest.raises(EndpointUnusable, match="missing"):
        EngineServer(f"ipc://{tmp_path}/missing/e")
