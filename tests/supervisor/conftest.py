"""A supervisor with small real children, run as a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

HERE = pathlib.Path(__file__).parent


class FakeServer:
    """tests/supervisor/fake_server.py as a process; its printed lines are the events that tests wait for."""

    def __init__(
        self, folder: pathlib.Path, behaviours: dict[str, dict[str, object]], limits: dict[str, float]
    ) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        arguments = {"folder": str(folder), "port": self.port, "behaviours": behaviours, "limits": limits}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "fake_server.py"), json.dumps(arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parent.parent)},
            start_new_session=True,
        )
        self.lines: list[str] = []

    def wait_for(self, pattern: str, nth: int = 1) -> re.Match[str]:
        """The nth printed line that matches, once it is there."""
        assert self.process.stderr is not None
        while True:
            found = [match for line in self.lines if (match := re.search(pattern, line))]
            if len(found) >= nth:
                return found[nth - 1]
            line = self.process.stderr.readline()
            if not line:
                break
            self.lines.append(line.rstrip("\n"))
        raise AssertionError(f"no line matches {pattern!r}:\n" + "\n".join(self.lines))

    def wait_until_serving(self) -> None:
        """The server says that it is ready, and every child has its signal handlers."""
        self.wait_for("Helios is ready")
        for role in ("recorder", "engine", "service"):
            self.wait_for(rf"{role} \| waiting")

    def wait(self) -> int:
        """The exit code, after the last line."""
        assert self.process.stderr is not None
        self.lines += [line.rstrip("\n") for line in self.process.stderr]
        return self.process.wait()

    def signal(self, signum: int) -> None:
        os.kill(self.process.pid, signum)

    def wait_until_gone(self, role: str) -> None:
        """Return when the role's last process has ended: it holds a lock on this file for its whole life."""
        with (self.folder / f"{role}.alive").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    def events(self) -> list[str]:
        """What the children wrote down, in order."""
        return (self.folder / "events").read_text().splitlines()


@pytest.fixture
def fake_server(tmp_path: pathlib.Path) -> Iterator[object]:
    started: list[FakeServer] = []

    def start(behaviours: dict[str, dict[str, object]] | None = None, **limits: float) -> FakeServer:
        started.append(FakeServer(tmp_path, behaviours or {}, limits))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.signal(signal.SIGKILL)
        server.wait()
