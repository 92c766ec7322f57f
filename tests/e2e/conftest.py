"""A tiny checkpoint that talks for ever; what the byte-level model ought to say; a report after the tests."""

from __future__ import annotations

import pathlib

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from tests.e2e.byte_server import MODEL_PATH
from tests.e2e.expected_answers import ExpectedAnswers

_REPORT = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A random model with a long context and no end token, so that a stream lasts as long as a test wants."""
    directory = tmp_path_factory.mktemp("endless")
    write_tiny_checkpoint(directory, max_position_embeddings=8192, eos_token_id=None)
    return directory


@pytest.fixture(scope="session")
def expected_answer() -> ExpectedAnswers:
    """Greedy answers of the byte-level model by another implementation."""
    return ExpectedAnswers(MODEL_PATH)


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> list[str]:
    """Lines to print after all tests: token counts, gaps between events, counters."""
    return pytestconfig.stash.setdefault(_REPORT, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the report, if any test wrote one."""
    lines = config.stash.get(_REPORT, [])
    if lines:
        terminalreporter.section("serving")
        for line in lines:
            terminalreporter.write_line(line)
