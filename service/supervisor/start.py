"""`helios serve` from checks to exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from service.settings import Settings
from service.supervisor import checks, preparation
from service.supervisor.report import Report
from service.supervisor.run import FirstPolicy, Supervisor
from service.supervisor.supervision import Role

MODULES: Mapping[Role, tuple[str, ...]] = {
    role: (sys.executable, "-P", "-m", f"service.{module}")
    for role, module in ((Role.RECORDER, "recorder"), (Role.ENGINE, "engine"), (Role.SERVICE, "app"))
}
"""The command of each role; the path of its settings is appended."""


def serve(settings: Settings, commands: Mapping[Role, tuple[str, ...]] = MODULES) -> int:
    """Check, start, supervise until SIGTERM or SIGINT; returns the exit code. Raises StartRefused."""
    checks.check_host(settings.host)
    lock = checks.claim_data_dir(settings)
    try:
        checks.check_port(settings.host, settings.port)
        model = preparation.check_model(settings)
        checks.make_socket_dir(settings)
        preparation.prepare_store(settings)
        return Supervisor(settings, commands, resolved_policy, Report(settings, model)).run()
    finally:
        lock.release()


def resolved_policy(settings: Settings) -> FirstPolicy:
    """The store's newest applied version, or a new one from the flags."""
    version = preparation.first_policy(settings)
    return version.version, version.config.as_dict()
