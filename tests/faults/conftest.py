"""The recorder's believable records, for checks of the checks."""

from __future__ import annotations

import types

import pytest

from tests.recorder import conftest as recorder


@pytest.fixture
def make() -> types.SimpleNamespace:
    """The helpers of the recorder's tests."""
    return types.SimpleNamespace(**{name: value for name, value in vars(recorder).items() if not name.startswith("__")})
