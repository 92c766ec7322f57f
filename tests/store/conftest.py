"""Fixtures of the store's tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port of 127.0.0.1 that nobody listens on for as long as the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
