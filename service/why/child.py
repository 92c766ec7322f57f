"""The process of one re-execution: `python -m service.why.child`. A Task on standard input, its Verdict on output."""

from __future__ import annotations

from service.priority import give_way
from service.process import guard_child

if __name__ == "__main__":
    guard_child()  # before the imports that take seconds: the server may end while they run
    give_way()

import importlib.metadata
import resource
import sys

import msgspec

from scheduler.kernels.loader import load_kernels
from service.store.engines import open_database
from service.store.errors import StoreError
from service.why.errors import WhyError
from service.why.explanation import explain
from service.why.recorded import FenceName
from service.why.verdicts import MOST_DIFFERENCES, UNAVAILABLE, Task, Verdict

MOST_BYTES = 3 << 30
"""Of address space: a forged log must not take the server's memory."""


def verdict_of(task: Task) -> Verdict:
    """Re-executes the decision in this process."""
    try:
        engine = open_database(task.database, readonly=True)
        try:
            found = explain(engine, FenceName(task.run_id, task.fence), _version())
        finally:
            engine.dispose()
    except (StoreError, WhyError) as error:
        return Verdict(UNAVAILABLE, str(error))
    replay = found.replay
    return Verdict(
        replay.result,
        replay.why,
        tuple(replay.differences[:MOST_DIFFERENCES]),
        len(replay.differences),
        replay.from_fence,
        replay.plans,
        replay.recorded_by,
        replay.replayed_by,
        found.ledgers_after,
    )


def _version() -> str:
    try:
        return importlib.metadata.version("helios-serving")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def main() -> int:
    """Reads the task, writes the verdict."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    load_kernels()
    sys.stdout.buffer.write(msgspec.json.encode(verdict_of(task)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
