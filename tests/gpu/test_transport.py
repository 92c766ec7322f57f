"""Transports carry out every upload, whatever the ones before it did."""

from __future__ import annotations

import select

import pytest

from gpu.cuda.inline_stream import InlineStream
from gpu.cuda.transport import GraphTransport
from gpu.transport import CpuTransport


class StagedProgram:
    """A captured program without inputs. `did`: what was asked of it, in order."""

    def __init__(self, did: list[str]) -> None:
        self._did = did

    def stage(self, inputs) -> int:
        self._did.append("program")
        return 0

    def send(self, turn) -> None:
        pass

    def replay(self) -> None:
        pass

    def fetch(self, turn, inputs):
        return lambda: None


@pytest.mark.parametrize("kind", ["cpu", "graphs"])
def test_an_upload_that_fails_leaves_those_behind_it_and_the_program_does_not_run(kind):
    did: list[str] = []
    transport = CpuTransport(1) if kind == "cpu" else GraphTransport(InlineStream())
    program = (lambda inputs: did.append("program")) if kind == "cpu" else StagedProgram(did)

    def failing(error: Exception):
        def upload() -> None:
            raise error

        return upload

    def run(*uploads):
        transport.submit(uploads, program, ())
        assert select.select([transport.completion_fd], [], [], 60)[0]
        return transport.collect()

    try:
        first, later = failing(ValueError("bad slot")), failing(KeyError("another"))
        result = run(lambda: did.append("one"), first, lambda: did.append("two"), later, lambda: did.append("three"))
        assert (result.error, result.output) == ("ValueError: bad slot", None)
        assert did == ["one", "two", "three"]
        assert run().error is None
        assert did == ["one", "two", "three", "program"]
    finally:
        transport.stop(abandon=False)
