"""What the rules of the house are checked on."""

from __future__ import annotations

import pathlib

import pytest


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return pathlib.Path(__file__).resolve().parent.parent.parent
