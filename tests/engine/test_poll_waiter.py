"""What wakes the loop: a message, also one whose arrival was noticed before, a result, or a stop."""

from __future__ import annotations

import os

import pytest
import zmq

from service.engine.run import PollWaiter, StopSignal
from service.ipc.messages import Hello, encode
from service.ipc.server import EngineServer

LONG_NS = 20_000_000_000


@pytest.fixture
def parts(tmp_path):
    """The engine's socket, a client of it, a pipe for the device's results, the stop signal and their waiter."""
    endpoint = f"ipc://{tmp_path}/e"
    with zmq.Context() as context, context.socket(zmq.DEALER) as client, EngineServer(endpoint) as server:
        client.set(zmq.LINGER, 0)
        client.connect(endpoint)
        results, finished = os.pipe()
        with StopSignal() as stop:
            yield server, client, (results, finished), stop, PollWaiter(server.socket, results, stop.fd)
        os.close(results)
        os.close(finished)


class NeverAsked:
    def poll(self, timeout):
        raise AssertionError(f"slept {timeout} ms beside a message")


def test_a_message_wakes_the_loop(parts):
    server, client, _, _, wait = parts
    client.send(encode(Hello("w")))
    while not (received := server.receive()):
        wait(LONG_NS)
    assert [message for _, message in received] == [Hello("w")]


def test_a_message_that_was_noticed_and_not_taken_is_not_slept_over(parts, monkeypatch):
    """The socket's descriptor tells of changes only, and whoever asks the socket has taken the news of this one."""
    server, client, _, _, wait = parts
    client.send(encode(Hello("w")))
    assert server.socket.poll(20_000)
    assert server.socket.get(zmq.EVENTS) & zmq.POLLIN
    monkeypatch.setattr(wait, "_poller", NeverAsked())
    wait(LONG_NS)
    assert len(server.receive()) == 1


def test_no_time_is_no_sleep(parts, monkeypatch):
    wait = parts[-1]
    monkeypatch.setattr(wait, "_poller", NeverAsked())
    wait(0)


def test_a_result_and_a_stop_wake_the_loop(parts):
    _, _, (results, finished), stop, wait = parts
    os.write(finished, b"\0")
    assert results in dict(wait._poller.poll(0))
    stop.request()
    assert stop.fd in dict(wait._poller.poll(0))
    wait(LONG_NS)
