"""A tiny checkpoint that talks for ever."""

from __future__ import annotations

import pathlib

import pytest
from tiny_checkpoint import write_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A random model with a long context and no end token, so that a stream lasts as long as a test wants."""
    directory = tmp_path_factory.mktemp("endless")
    write_tiny_checkpoint(directory, max_position_embeddings=8192, eos_token_id=None)
    return directory
