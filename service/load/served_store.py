"""`helios serve` over a store that is there already, on the simulated device: for measurements of its pages."""

from __future__ import annotations

import contextlib
import http.client
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from service.load.errors import EngineDidNotStart
from service.load.server import Options, simulated_settings

START_S = 300.0
STOP_S = 20.0
_LOOK_S = 0.1


@contextlib.contextmanager
def served_store(folder: pathlib.Path, database: str) -> Iterator[str]:
    """The address of a whole server over `database`; its files lie in `folder`. Raises EngineDidNotStart.

    It writes to the store as any server does: it begins a run of its own there.
    """
    settings = simulated_settings(folder, Options(database=database))
    port = _free_port()
    words = [
        *(sys.executable, "-m", "service.cli", "serve", "--port", str(port), "--data-dir", settings.data_dir),
        *("--model", settings.model, "--database", settings.database, "--device", "simulated"),
        *("--catalog", str(settings.catalog), "--time-scale", str(settings.time_scale), "--retention-days", "0"),
    ]
    log = folder / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_ready(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: pathlib.Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
            raise EngineDidNotStart(f"helios serve ended: {last[0]}")
        if _is_ready(port):
            return
        time.sleep(_LOOK_S)
    raise EngineDidNotStart(f"helios serve was not ready within {START_S:.0f} s")


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
