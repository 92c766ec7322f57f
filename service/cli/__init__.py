"""The `helios` command.

`helios serve` can be told to stop from its first moment on: the imports below take a second, and until they are done
a signal ends it as later an early stop does, with exit code 0 and nothing left behind.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def _stop_at_once(_signum: int, _frame: FrameType | None) -> NoReturn:
    """Nothing was made yet, so there is nothing to close. Takes no lock: it interrupts whatever runs."""
    os.write(2, b"  helios | stopped before anything was started\n")
    os._exit(0)


if sys.argv[1:2] == ["serve"]:
    for _signal in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if _signal != signal.SIGHUP or signal.getsignal(_signal) != signal.SIG_IGN:  # nohup
            signal.signal(_signal, _stop_at_once)

# ruff: noqa: E402
from service.cli.tree import main

__all__ = ["main"]
