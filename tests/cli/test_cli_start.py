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


@pytest.mark.parametrize("command", [["policy", "show", "--help"], ["keys", "list", "--help"], ["journal", "--help"]])
def test_a_command_imports_what_it_needs_itself(command):
    code = (
        "import sys; from service.cli import main; main(sys.argv[1:], standalone_mode=False); "
        "print([name for name in ('service.load.million', 'scheduler.simulation.machine') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
