"""An engine on the simulated device and its recorder as processes of their own, without the service and the supervisor.

    with simulated_server(folder, Options(plans_per_s=200)) as server, Submitter(server.endpoint, Load()) as load: ...

For measurements and tests. Everything lies in one folder that the caller gives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec

from scheduler.policy import PolicyConfig
from service.load.errors import EngineDidNotStart
from service.settings import EngineStart, Settings, child_environment
from service.store.database import database_url, upgrade
from service.telemetry.metric_table import METRIC_BY_NAME
from service.telemetry.shared import MetricsReader, series_values

DECODE_MS = 50.0
"""How long a decode graph takes in the catalog, before the time scale."""
START_S = 300.0
"""A machine that is busy with other things starts engines slowly."""
STOP_S = 20.0
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_PREFILLS = (64, 512)


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What the server is like. `plans_per_s`: of the device while all lanes decode and nothing else is slower.

    `database`: empty for SQLite in the folder. `upgrades`: make the store first, so it must be there. `recorder`: False
    starts none. `tracing`: False keeps no journal at all, see Settings.
    """

    plans_per_s: float = 200.0
    lanes: int = 8
    database: str = ""
    upgrades: bool = True
    recorder: bool = True
    tracing: bool = True
    otlp_endpoint: str | None = None


def catalog_csv(lanes: int) -> str:
    """Prefill and decode graphs up to `lanes`; every decode graph takes about DECODE_MS, the largest exactly that."""
    lines = ["kind,B,D,W,P,prefill_capacity,duration_ms"]
    lines += [f"prefill,1,0,0,{size},{size},{DECODE_MS * (0.5 + size / 1024):g}" for size in _PREFILLS]
    batches = [batch for batch in _BATCHES if batch < lanes] + [lanes]
    lines += [f"decode,{b},0,1,{b},0,{DECODE_MS * (1 - 0.01 * (lanes - b) / lanes):g}" for b in batches]
    return "\n".join(lines) + "\n"


def byte_model() -> str:
    """The folder of the small model that comes with Helios; a simulated device needs its tokenizer only."""
    spec = importlib.util.find_spec("gpu")
    assert spec is not None, "the gpu package is installed with the service"
    assert spec.origin is not None, "the gpu package has an __init__.py"
    return str(pathlib.Path(spec.origin).parent / "assets" / "byte-model")


def simulated_settings(folder: pathlib.Path, options: Options) -> Settings:
    """Settings of such a server; writes its catalog into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = folder / "catalog.csv"
    catalog.write_text(catalog_csv(options.lanes), encoding="utf-8")
    settings = Settings(
        model=byte_model(),
        data_dir=str(folder),
        database=options.database,
        device="simulated",
        catalog=str(catalog),
        time_scale=1000 / options.plans_per_s / DECODE_MS,
        threads=1,
        tracing=options.tracing,
        otlp_endpoint=options.otlp_endpoint,
    )
    return msgspec.structs.replace(settings, database=database_url(settings))


class SimulatedServer:
    """The two processes. Use it through `simulated_server`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.endpoint = settings.engine_endpoint
        self.engine: subprocess.Popen[bytes] | None = None
        self.recorder: subprocess.Popen[bytes] | None = None
        self._runs = 0

    def start_engine(self) -> None:
        """Start another engine run; `Submitter.wait_ready` waits for it."""
        self._runs += 1
        start = EngineStart(
            settings=self.settings,
            run_id=f"load-{os.getpid()}-{self._runs}",
            endpoint=self.endpoint,
            policy_version=1,
            coefficients=PolicyConfig.balanced().as_dict(),
        )
        self.engine = self._start("engine", msgspec.json.encode(start))

    def start_recorder(self) -> None:
        """Start a recorder, also beside one that was killed."""
        self.recorder = self._start("recorder", msgspec.json.encode(self.settings))

    def log(self, role: str) -> str:
        """What the processes of this role have printed."""
        with contextlib.suppress(OSError):
            return (self.settings.run_dir / f"{role}.log").read_text(encoding="utf-8", errors="replace")
        return ""

    def check_alive(self) -> None:
        """Raises EngineDidNotStart when the engine's process has ended."""
        if self.engine is None or self.engine.poll() is not None:
            last = self.log("engine").strip().splitlines()[-1:] or ["it printed nothing"]
            raise EngineDidNotStart(f"the engine ended: {last[0]}")

    def metric(self, name: str, *labels: str) -> float:
        """A counter or gauge of the engine or the recorder now; 0 where its process has not made it yet."""
        settings, metric = self.settings, METRIC_BY_NAME[name]
        path = settings.engine_metrics_path if metric.owner.value == "engine" else settings.recorder_metrics_path
        snapshot = MetricsReader(path).read()
        return 0.0 if snapshot is None else series_values(metric, labels, snapshot.slots)[0]

    def plans(self) -> int:
        """Plans that the engine's run has completed."""
        metric = METRIC_BY_NAME["flare_scheduler_executions_total"]
        return int(sum(self.metric(metric.name, *labels) for labels in metric.series()))

    def caught_up(self) -> bool:
        """Whether the recorder that was started last runs and has nothing left to deliver; True without one."""
        if self.recorder is None:
            return True
        beat = MetricsReader(self.settings.recorder_metrics_path).heartbeat()
        if beat is None or beat.pid != self.recorder.pid:
            return False
        return not any(self.metric("flare_trace_lag_seconds", sink) for sink in ("sql", "otlp"))

    def stop(self) -> None:
        """Stop in order, engine first; kill what does not end."""
        for process in (self.engine, self.recorder):
            if process is None:
                continue
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, module: str, content: bytes) -> subprocess.Popen[bytes]:
        path = self.settings.run_dir / f"{module}.json"
        path.write_bytes(content)
        with (self.settings.run_dir / f"{module}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"service.{module}", str(path)],
                env=child_environment(os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


@contextlib.contextmanager
def simulated_server(folder: pathlib.Path, options: Options) -> Iterator[SimulatedServer]:
    """A server whose processes have been started; stopped at the end."""
    settings = simulated_settings(folder, options)
    for needed in (settings.run_dir, settings.socket_dir):
        needed.mkdir(parents=True, exist_ok=True, mode=0o700)
    if options.upgrades:
        upgrade(settings.database)
    server = SimulatedServer(settings)
    try:
        server.start_engine()
        if options.recorder:
            server.start_recorder()
        yield server
    finally:
        server.stop()


def cpu_ns(pid: int) -> list[int]:
    """CPU time of each thread of a process, in the order of their start; [] where the kernel does not tell."""
    times = []
    with contextlib.suppress(OSError, ValueError):
        tasks = sorted(int(task.name) for task in pathlib.Path(f"/proc/{pid}/task").iterdir())
        for task in tasks:
            with contextlib.suppress(OSError, ValueError):
                times.append(int(pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]))
    return times
