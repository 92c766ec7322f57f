"""The engine process: `python -m service.engine START.json`.

Exit codes: 0 stopped in order, 1 failed while serving (the supervisor starts another engine), 2 cannot start with
these settings (the last line says what to change).
"""

from __future__ import annotations

import logging
import os
import pathlib
import sys
import time

import msgspec

from gpu.device import DeviceError
from scheduler.errors import SchedulerError
from service.engine.run import PollWaiter, StopSignal, run_worker
from service.engine.short_slices import ask_for_short_slices
from service.engine.start import StopRequested, start_engine
from service.ipc.server import EndpointUnusable
from service.journal.errors import JournalError
from service.model_source import ModelSourceError
from service.process import guard_child, install_stop_handler
from service.settings import EngineStart
from service.telemetry.shared import TelemetryError

DEADLINE_S = 4.8
EXIT_USAGE = 2


def main(arguments: list[str]) -> int:
    """Run one engine; returns the exit code."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stop = StopSignal()
    guard_child()
    ask_for_short_slices()
    install_stop_handler(stop.request, DEADLINE_S)
    try:
        (path,) = arguments
        start = msgspec.json.decode(pathlib.Path(path).read_bytes(), type=EngineStart)
    except (ValueError, OSError) as error:
        return _refuse(f"usage: python -m service.engine START.json: {error}")
    try:
        engine = start_engine(start, lambda: stop.requested)
    except StopRequested:
        return 0
    except (ModelSourceError, DeviceError, JournalError, TelemetryError, SchedulerError, EndpointUnusable) as error:
        return _refuse(f"the engine cannot start: {error}")
    wait = PollWaiter(engine.server.socket, engine.device.completion_fd, stop.fd)
    code = run_worker(engine.worker, stop, wait, time.monotonic_ns)
    engine.close(abandon=True)
    return code


def exit_now(code: int) -> None:
    """End without the interpreter's clean-up, which must not run under a program that was left behind."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _refuse(text: str) -> int:
    print(text, file=sys.stderr, flush=True)
    return EXIT_USAGE
