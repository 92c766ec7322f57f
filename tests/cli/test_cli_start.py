"""What the command line loads before it does anything: a question to the store must not wait for a web framework."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("dash", "fastapi", "litestar", "numba", "plotly", "torch", "transformers")


@pytest.mark.parametrize("module", ["service.cli", "service.why.wording"])
def test_commands_load_no_framework(module):
    report = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
