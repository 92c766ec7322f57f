"""Decisions re-executed beside a server that serves: each in a process of its own, of low priority, with a time limit.

    again = ReExecution()
    verdict = await again.verdict(database_url, "run-1", 42)

A replay is seconds of arithmetic that no stream should wait for, so the server's own process does none of it; the
child (service.why.child) gives way to everybody, gets the store's address on its standard input and ends with the
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence

import msgspec

from service.settings import child_environment

TIME_LIMIT_S = 120.0
AT_ONCE = 1
CHILD = (sys.executable, "-m", "service.why.child")
MOST_DIFFERENCES = 12
SAME, DIFFERENT, NOT_REPLAYABLE, UNAVAILABLE = "same", "different", "not_replayable", "unavailable"


class Task(msgspec.Struct, frozen=True):
    """What the child is told: the store's address, password included, and the plan."""

    database: str
    run_id: str
    fence: int


class Verdict(msgspec.Struct, frozen=True):
    """How a re-execution went. `result`: same, different, not_replayable, or unavailable when it was not tried.

    `why`: of the last two. `differences`: what came out differently, the first MOST_DIFFERENCES of `difference_count`.
    `from_fence`: the checkpoint's last fence; `plans`: decisions replayed. `ledgers_after` by SQL column, in ms, behind
    the plan's completion; None where that is not known.
    """

    result: str
    why: str | None = None
    differences: tuple[str, ...] = ()
    difference_count: int = 0
    from_fence: int | None = None
    plans: int = 0
    recorded_by: str | None = None
    replayed_by: str = ""
    ledgers_after: dict[str, float] | None = None


class ReExecution:
    """Runs at most AT_ONCE children; one for each server process. `child` is the last one that was started."""

    def __init__(
        self, time_limit_s: float = TIME_LIMIT_S, at_once: int = AT_ONCE, arguments: Sequence[str] = CHILD
    ) -> None:
        self._time_limit_s = time_limit_s
        self._arguments = arguments
        self.child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Semaphore(at_once)

    async def verdict(self, database: str, run_id: str, fence: int) -> Verdict:
        """Re-executes one decision of the store at `database`. Raises nothing: what goes wrong is the verdict."""
        if self._turn.locked():
            return Verdict(UNAVAILABLE, "another decision is being re-executed; try again in a moment")
        async with self._turn:
            try:
                return await self._run(Task(database, run_id, fence))
            except TimeoutError:
                limit = f"{self._time_limit_s:.0f} s"
                return Verdict(UNAVAILABLE, f"it took longer than {limit}; helios explain has no limit")
            except (OSError, msgspec.MsgspecError) as error:
                return Verdict(UNAVAILABLE, f"its process failed: {type(error).__name__}")

    async def _run(self, task: Task) -> Verdict:
        child = await asyncio.create_subprocess_exec(
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=child_environment(os.getpid()),
            start_new_session=True,
        )
        self.child = child
        try:
            out, _ = await asyncio.wait_for(child.communicate(msgspec.json.encode(task)), self._time_limit_s)
        finally:
            # Also when the caller has gone: nobody reads the answer then.
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        return msgspec.json.decode(out, type=Verdict)
