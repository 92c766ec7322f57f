"""Starts `helios serve` as a user would, on a free loopback port, and stops it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence

import httpx
import openai
from waiting import free_port, wait_until

START_SECONDS = 120.0


def children_of(pid: int) -> dict[str, int]:
    """Process ids of a process's children by the module that each runs (`service.engine` …)."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if parent == pid and b"-m" in words:
                found[words[words.index(b"-m") + 1].decode()] = int(entry.name)
    return found


def process_state(pid: int) -> str:
    """The kernel's letter for the process's state: R, S, D, T (stopped), Z (zombie); empty when there is none."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    return process_state(pid) not in ("", "Z")


class HeliosServer:
    """One running `helios serve`, or what `command` starts instead, at `port`."""

    def __init__(
        self, data_dir: pathlib.Path, *arguments: str, command: Sequence[str] | None = None, port: int | None = None
    ) -> None:
        self.data_dir = data_dir
        self.port = port or free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.base, verify=False, timeout=10)  # plain HTTP, no certificates to load
        self.output = (data_dir.parent / f"{data_dir.name}.log").open("w+b")
        words = [sys.executable, "-m", "service.cli", "serve", "--port", str(self.port), "--data-dir", str(data_dir)]
        self.process = subprocess.Popen(
            [*(command or words), *arguments],
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "120"},
        )

    def log(self) -> str:
        self.output.flush()
        return pathlib.Path(self.output.name).read_text(errors="replace")

    def ready(self) -> bool:
        assert self.process.poll() is None, f"helios serve ended with {self.process.returncode}:\n{self.log()}"
        try:
            return self.http.get("/health/ready", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def wait_ready(self) -> HeliosServer:
        wait_until(self.ready, f"the server to be ready:\n{self.log()}", START_SECONDS)
        return self

    def client(self, **options: object) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.base}/v1", api_key="none", max_retries=0, timeout=60, **options)

    def rows(self, query: str, **parameters: object) -> list[dict[str, object]]:
        with contextlib.closing(sqlite3.connect(f"file:{self.data_dir / 'helios.db'}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query, parameters)]

    def metric(self, name: str) -> float:
        """The sample called `name` (labels included) on /metrics; fails when it is absent."""
        text = self.http.get("/metrics").text
        for line in text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise AssertionError(f"no sample {name} in\n{text}")

    def child(self, module: str) -> int:
        return wait_until(lambda: children_of(self.process.pid).get(module), f"the process {module}")

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def end(self) -> None:
        """Ends whatever is left after a test."""
        children = children_of(self.process.pid).values() if self.process.poll() is None else ()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.output.close()
        self.http.close()


@contextlib.contextmanager
def serving(data_dir: pathlib.Path, *arguments: str) -> Iterator[HeliosServer]:
    """A ready server, ended afterwards whatever happens."""
    server = HeliosServer(data_dir, *arguments)
    try:
        yield server.wait_ready()
    finally:
        server.end()
