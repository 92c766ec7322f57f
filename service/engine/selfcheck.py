"""`python -m service.engine.selfcheck cpu|cuda`: every check, one JSON line at its start and one at its end.

Lines: {"checks": names} first, {"begins": name}, {"name", "status", "detail", "seconds"}, or {"unavailable": why}.
Exit 0 when no check failed, 1 when one did, 2 when nothing can be checked here.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import pathlib
import sys
import tempfile
from collections.abc import Sequence

import torch

from gpu.device import DeviceUnavailable
from gpu.selfcheck.checks import program_checks
from gpu.selfcheck.outcome import NamedCheck, Status, carry_out
from service.engine.selfcheck_serving import Load, serve_load

_LOADS = {
    "cpu": Load(model="tiny", streams=8, prompt_tokens=24, output_tokens=40, dtype="float32"),
    "cuda": Load(model="billion", streams=32, prompt_tokens=128, output_tokens=256, dtype="bfloat16"),
}


def main(device: str) -> int:
    """Check `device` and return the exit code."""
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1 if device == "cpu" else torch.get_num_threads())
    with tempfile.TemporaryDirectory(prefix="helios-selfcheck-") as name:
        folder = pathlib.Path(name)
        try:
            checks = all_checks(device, folder)
        except DeviceUnavailable as error:
            _say({"unavailable": str(error)})
            return 2
        _say({"checks": [check.name for check in checks]})
        failed = False
        for check in checks:
            _say({"begins": check.name})
            outcome = carry_out(check)
            failed |= outcome.status is Status.FAILED
            _say(dataclasses.asdict(outcome) | {"status": outcome.status.value})
    return 1 if failed else 0


def all_checks(device: str, folder: pathlib.Path) -> Sequence[NamedCheck]:
    """Those of the programs, and serving with scheduler and worker loop. Raises DeviceUnavailable."""
    load = _LOADS[device]
    name = f"plan latency and busy share at {load.streams} streams"
    return (*program_checks(device, folder), NamedCheck(name, functools.partial(serve_load, load, device, folder)))


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
