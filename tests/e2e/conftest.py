"""A tiny checkpoint that talks for ever, and the browser."""

from __future__ import annotations

import pathlib

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from tests.browser.conftest import browser, chromium_path, context, page, watch

__all__ = ["browser", "chromium_path", "context", "page", "watch"]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A random model with a long context and no end token, so that a stream lasts as long as a test wants."""
    directory = tmp_path_factory.mktemp("endless")
    write_tiny_checkpoint(directory, max_position_embeddings=8192, eos_token_id=None)
    return directory
