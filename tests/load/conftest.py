"""An engine's socket in the test's own hands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from waiting import wait_until

from service.ipc.messages import Accepted, EngineReady, Event, Hello, Submit, ToEngine, Tokens
from service.ipc.server import EngineServer


class ScriptedEngine:
    """Answers a Hello; everything else the test says. `submitted`: requests in order, with the client to answer."""

    def __init__(self, endpoint: str, run_id: str) -> None:
        self.server = EngineServer(endpoint)
        self.run_id = run_id
        self.client: bytes | None = None
        self.submitted: list[Submit] = []
        self.others: list[ToEngine] = []

    def read(self) -> None:
        for client, message in self.server.receive():
            if isinstance(message, Hello):
                self.client = client
                self.say(EngineReady(self.run_id, 1, 1, 2048, 100, 16, 256))
            elif isinstance(message, Submit):
                self.submitted.append(message)
                self.say(Accepted(message.request_id))
            else:
                self.others.append(message)

    def say(self, *events: Event) -> None:
        assert self.client is not None
        assert self.server.send(self.client, list(events))

    def tokens(self, number: int, count: int = 1, ends: str | None = None) -> None:
        """`count` tokens of the request that was submitted as `number`."""
        self.say(Tokens(self.submitted[number].request_id, [7] * count, 0, 0, ends))

    def wait_submitted(self, count: int) -> None:
        wait_until(lambda: self.read() or len(self.submitted) >= count, f"{count} requests")

    def close(self) -> None:
        self.server.close()


@pytest.fixture
def endpoint(tmp_path) -> str:
    return f"ipc://{tmp_path}/e"


@pytest.fixture
def engine(endpoint) -> Iterator[ScriptedEngine]:
    scripted = ScriptedEngine(endpoint, "run-1")
    yield scripted
    scripted.close()
