"""Requests sent on one connection before the first is answered, over real sockets."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable

import pytest
from fake_engine import HOLD, Api, ids

from service.api.connection import MAX_PIPELINED

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIVE_LAST = LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


def completion(stream: bool, prompt: str = "Hi") -> bytes:
    body = json.dumps({"model": "tiny", "prompt": prompt, "stream": stream}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def connect(api: Api) -> socket.socket:
    host, port = api.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


def ended(api: Api) -> None:
    """The one generation was cancelled, and nothing is open any more."""
    assert api.engine.left.wait(10)
    assert [reason for _, reason in api.engine.cancels] == ["abort"]
    assert len(api.engine.submits) == 1
    while api.app.state.context.open:
        api.http.get("/health/live")


@pytest.mark.parametrize("leave", [close, reset, half_close])
@pytest.mark.parametrize("behind", [b"", LIVE, LIVE * 3, completion(True), completion(False) + LIVE[:20]], ids=range(5))
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_ends_its_generation_whatever_it_sent_behind_it(
    api: Api, stream: bool, behind: bytes, leave: Callable[[socket.socket], None]
):
    api.engine.script = lambda _: [ids("a"), HOLD]
    with connect(api) as connection:
        connection.sendall(completion(stream))
        assert api.engine.holding.wait(10)
        connection.sendall(behind)
        leave(connection)
        ended(api)


def test_a_stream_that_is_being_written_ends_without_a_word_in_the_log(api: Api, caplog):
    """Each event written to a lost connection would be one warning of asyncio's."""
    api.engine.script = lambda _: [ids("a")] * 1_000_000
    with caplog.at_level(logging.WARNING):
        with connect(api) as connection:
            connection.sendall(completion(True) + LIVE)
            assert connection.recv(100)
        ended(api)
    assert [record.getMessage() for record in caplog.records] == []


def test_a_reader_that_stopped_and_leaves_ends_its_generation(api: Api):
    """The server has more to send than the sockets hold when the client says that it is through."""
    api.engine.script = lambda _: [ids("a" * 100_000)] * 200 + [HOLD]
    with connect(api) as connection:
        connection.sendall(completion(True) + LIVE)
        assert connection.recv(100)
        half_close(connection)
        ended(api)


def test_pipelined_requests_are_answered_in_order(api: Api):
    received = b""
    with connect(api) as connection:
        connection.sendall(completion(False) + completion(True) + LIVE_LAST)
        while chunk := connection.recv(65536):
            received += chunk
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.index(b"text_completion") < received.index(b"[DONE]") < received.rindex(b"HTTP/1.1 200 OK")
    assert api.engine.cancels == []


@pytest.mark.parametrize("behind", [LIVE * (MAX_PIPELINED + 1), completion(True, "x" * 200_000)], ids=["many", "large"])
def test_more_behind_an_unfinished_answer_than_is_kept_cuts_the_connection(api: Api, behind: bytes):
    api.engine.script = lambda _: [ids("a"), HOLD]
    with connect(api) as connection:
        connection.sendall(completion(True))
        assert api.engine.holding.wait(10)
        connection.sendall(behind)
        ended(api)
