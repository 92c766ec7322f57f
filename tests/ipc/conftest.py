"""A socket address of one test's own."""

from __future__ import annotations

import pytest


@pytest.fixture
def endpoint(tmp_path):
    return f"ipc://{tmp_path}/e"
