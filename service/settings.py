"""Every setting of `helios serve`, frozen, resolved once and handed to each process as JSON.

The environment is read here and nowhere else. Each field's metadata holds its help text; the command line, the
documentation and the tests are made from it.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import tempfile
from collections.abc import Mapping

import msgspec

DEFAULT_MODEL = "smollm2-135m-instruct"
SOCKET_PATH_BYTES = 107  # sockaddr_un holds 108 with the closing NUL
SUPERVISOR_PID = "HELIOS_SUPERVISOR_PID"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Resolved settings of one `helios serve`. Paths are absolute."""

    model: str = DEFAULT_MODEL
    host: str = "127.0.0.1"
    port: int = 8000
    data_dir: str
    database: str
    device: str = "cpu"
    dtype: str = "float32"
    max_context: int | None = None
    kv_pages: int | None = None
    request_slots: int = 64
    threads: int
    prefill_capacities: tuple[int, ...] = (64, 128, 256, 512)
    decode_batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    scheduler_policy: str | None = None
    scheduler_terminal_value: float | None = None
    scheduler_terminal_age_price: float | None = None
    otlp_endpoint: str | None = None
    journal_budget: int = 1 << 30
    journal_segment_bytes: int = 64 << 20
    journal_sync_ms: int = 1000
    queue_limit: int = 1024

    @property
    def run_dir(self) -> pathlib.Path:
        """Sockets, process settings and metric snapshots of the running server."""
        return pathlib.Path(self.data_dir) / "run"

    @property
    def journal_dir(self) -> pathlib.Path:
        """The journal's segments."""
        return pathlib.Path(self.data_dir) / "journal"

    @property
    def socket_dir(self) -> pathlib.Path:
        """Where the engine's socket lies: run_dir, or a short private folder when that path exceeds 107 bytes."""
        if len(os.fsencode(self.run_dir / "engine.sock")) <= SOCKET_PATH_BYTES:
            return self.run_dir
        digest = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:16]
        for base in (pathlib.Path(tempfile.gettempdir()), pathlib.Path("/tmp")):
            folder = base / f"helios-{os.getuid()}-{digest}"
            if len(os.fsencode(folder / "engine.sock")) <= SOCKET_PATH_BYTES:
                break
        return folder

    @property
    def engine_endpoint(self) -> str:
        """The engine's ZeroMQ endpoint, the same for every process of this data directory."""
        return f"ipc://{self.socket_dir / 'engine.sock'}"

    @property
    def engine_metrics_path(self) -> pathlib.Path:
        """The engine's shared-memory counters."""
        return self.run_dir / "engine.metrics"

    @property
    def recorder_metrics_path(self) -> pathlib.Path:
        """The recorder's shared-memory counters."""
        return self.run_dir / "recorder.metrics"


class EngineStart(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor tells one engine run: its settings, identity and first policy."""

    settings: Settings
    run_id: str
    endpoint: str
    policy_version: int
    coefficients: dict[str, float | int | str]


def default_data_dir(environment: Mapping[str, str] | None = None) -> pathlib.Path:
    """$HELIOS_DATA_DIR, else $XDG_DATA_HOME/helios, else ~/.local/share/helios."""
    env = os.environ if environment is None else environment
    if env.get("HELIOS_DATA_DIR"):
        return pathlib.Path(env["HELIOS_DATA_DIR"]).expanduser().resolve()
    base = env.get("XDG_DATA_HOME")
    root = pathlib.Path(base) if base else pathlib.Path.home() / ".local" / "share"
    return (root / "helios").resolve()


def default_threads() -> int:
    """Math threads for CPU programs: all cores but one, which the loop, HTTP and the recorder share."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, available - 1)


def supervisor_pid(environment: Mapping[str, str] | None = None) -> int | None:
    """The supervisor that started this process, or None when it was started by hand."""
    text = (os.environ if environment is None else environment).get(SUPERVISOR_PID, "")
    return int(text) if text.isascii() and text.isdigit() else None


def child_environment(pid: int, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the supervisor `pid` hands to its children: its own environment, its pid, and where this code lies."""
    env = dict(os.environ if environment is None else environment)
    code = str(pathlib.Path(__file__).resolve().parent.parent)
    paths = [code, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    return {**env, SUPERVISOR_PID: str(pid), "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
