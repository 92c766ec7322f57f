"""`helios serve` from checks to exit code."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import NoReturn

from service.process import install_stop_handler, leave
from service.settings import Settings
from service.supervisor import checks, preparation
from service.supervisor.data_dir import DataDir
from service.supervisor.policies import FirstPolicy
from service.supervisor.report import Report
from service.supervisor.run import Supervisor
from service.supervisor.supervision import ENGINE, RECORDER, SERVICE, Role

STOP_DEADLINE_S = 4.95
MODULES: Mapping[Role, tuple[str, ...]] = {
    role: (sys.executable, "-P", "-m", f"service.{module}")
    for role, module in ((RECORDER, "recorder"), (ENGINE, "engine"), (SERVICE, "app"))
}
"""The command of each role; the path of its settings is appended."""


def serve_and_leave(settings: Settings) -> NoReturn:
    """serve(), and end this process with its exit code. Raises StartRefused."""
    leave(serve(settings))


class StopGate:
    """Where a request to stop goes: at first it ends this process, later the supervisor stops its children in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._action: Callable[[], None] = lambda: _leave_early(None)

    def stop(self) -> None:
        """SIGTERM or SIGINT came; called on a thread of its own."""
        with self._lock:
            self._action()

    def hold(self, settings: Settings) -> DataDir:
        """The data directory, which a stop from now on leaves as it was. Raises DataDirUnusable or DataDirBusy."""
        with self._lock:
            data_dir = DataDir(settings)
            self._action = lambda: _leave_early(data_dir)
            return data_dir

    def hand_over(self, action: Callable[[], None]) -> None:
        """From now on a stop calls `action`."""
        with self._lock:
            self._action = action


def serve(settings: Settings, commands: Mapping[Role, tuple[str, ...]] = MODULES) -> int:
    """Check, start, supervise until SIGTERM or SIGINT; returns the exit code.

    Raises StartRefused, and then, as after a stop before the first process was started (exit code 0), what was made
    in the data directory is gone again, but for a database that was made or upgraded.
    """
    checks.check_host(settings.host, settings.credentials_file)
    gate = StopGate()
    put_back = install_stop_handler(gate.stop, STOP_DEADLINE_S)
    try:
        data_dir = gate.hold(settings)
        try:
            supervisor = _prepared(settings, commands, data_dir)
            gate.hand_over(supervisor.request_stop)
        except BaseException:
            data_dir.undo()
            raise
        try:
            return supervisor.run()
        finally:
            data_dir.release()
    finally:
        put_back()


def _prepared(settings: Settings, commands: Mapping[Role, tuple[str, ...]], data_dir: DataDir) -> Supervisor:
    """Everything that can refuse the start, before the first process. Raises StartRefused."""
    checks.check_port(settings.host, settings.port)
    model = preparation.check_model(settings)
    data_dir.make_socket_dir()
    preparation.prepare_store(settings)
    supervisor = Supervisor(settings, commands, resolved_policy, Report(settings, model))
    supervisor.prepare()
    return supervisor


def _leave_early(data_dir: DataDir | None) -> NoReturn:
    """End now, whatever the main thread waits for: an upgrade that is cut off changes nothing."""
    if data_dir is not None:
        data_dir.undo()
    sys.stderr.write("  helios | stopped before anything was started\n")
    leave(0)


def resolved_policy(settings: Settings) -> FirstPolicy:
    """The store's newest applied version, or a new one from the flags."""
    version = preparation.first_policy(settings)
    return version.version, version.config.as_dict()
