"""What the engine's process loads."""

from __future__ import annotations

import pathlib
import subprocess
import sys

PROGRAM = """
import sys
import service.engine.run
for name in ("opentelemetry", "google.protobuf", "requests", "sqlalchemy", "litestar", "prometheus_client"):
    assert name not in sys.modules, name
"""


def test_the_engine_loads_no_opentelemetry_no_http_and_no_sql():
    """Each costs a start some tenths of a second, and memory that the model could have."""
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
