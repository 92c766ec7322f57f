"""What some tests need from the machine: skipped with an instruction where it is missing, a failure under CI."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def missing(instruction: str) -> NoReturn:
    """Ends the test: something is not installed. `instruction` says what to install."""
    if os.environ.get("CI"):
        pytest.fail(f"CI needs everything: {instruction}", pytrace=False)
    pytest.skip(instruction)


def program(*names: str, instruction: str, named: str | None = None) -> str:
    """The path of the first program that is installed, or of `named` alone; else ends the test."""
    for name in (named,) if named else names:
        if (found := shutil.which(name)) is not None:
            return found
    missing(instruction)
