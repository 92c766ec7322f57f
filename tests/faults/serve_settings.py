"""`python -m tests.faults.serve_settings SETTINGS.json`: a server with settings that have no option."""

from __future__ import annotations

import pathlib
import sys

import msgspec

from service.settings import Settings
from service.supervisor.start import serve_and_leave

if __name__ == "__main__":
    serve_and_leave(msgspec.json.decode(pathlib.Path(sys.argv[1]).read_bytes(), type=Settings))
