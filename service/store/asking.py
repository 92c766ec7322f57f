"""Asks an operator's questions, each in a process of its own (service.store.question_process)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys

import msgspec

from service.settings import child_environment
from service.store.errors import StatementError, StoreUnavailable
from service.store.places import Places
from service.store.question import Question, Told

_log = logging.getLogger(__name__)
PLACES = 2
WAITING = 8
PATIENCE_S = 5.0
READY_FOR_S = 120.0
BUSY = "Other statements are still running; try again in a moment"
GRACE_S = 3.0
"""Beyond a question's own time: to start the process, and to hand the answer over."""
_PROGRAM = (sys.executable, "-m", "service.store.question_process")


class Asking:
    """The questions of one service process. At most `places` run and `waiting` wait, each for `patience_s`."""

    def __init__(self, places: int = PLACES, waiting: int = WAITING, patience_s: float = PATIENCE_S) -> None:
        self._places = Places(places, waiting, patience_s, BUSY)
        self._ready: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._dismissal: asyncio.TimerHandle | None = None

    async def ask(self, question: Question) -> tuple[bytes, Told]:
        """The answer's bytes in the form that was asked for, and what is said of it.

        Cancelling the caller ends the statement. Raises StatementError, StoreUnavailable and TooManyReads.
        """
        async with self._places.one():
            body, told = await _answered(await self._process(), question)
        if told.error is None:
            return body, told
        raise StatementError(told.error, told.offset) if told.is_mistake else StoreUnavailable(told.error)

    async def close(self) -> None:
        """Ends the process that waits for the next question."""
        if self._dismissal is not None:
            self._dismissal.cancel()
        ready, self._ready = self._ready, None
        if ready is not None:
            with contextlib.suppress(OSError):
                await _ended(await ready)

    async def _process(self) -> asyncio.subprocess.Process:
        """A process that waits for a question; the next one is made ready meanwhile, and kept for a while."""
        ready, self._ready = self._ready, asyncio.ensure_future(_started())
        if self._dismissal is not None:
            self._dismissal.cancel()
        loop = asyncio.get_running_loop()
        self._dismissal = loop.call_later(READY_FOR_S, lambda: loop.create_task(self.close()))
        if ready is None:
            return await _started()
        try:
            process = await asyncio.shield(ready)
        except asyncio.CancelledError:
            ready.add_done_callback(_dismissed)
            raise
        return process if process.returncode is None else await _started()


async def _started() -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *_PROGRAM, stdin=pipe, stdout=pipe, stderr=pipe, env=child_environment(os.getpid())
    )


def _dismissed(ready: asyncio.Task[asyncio.subprocess.Process]) -> None:
    """Ends a process that nobody waits for any more; the loop's child watcher sees its end."""
    if not ready.cancelled() and ready.exception() is None:
        with contextlib.suppress(ProcessLookupError):
            ready.result().kill()


async def _answered(process: asyncio.subprocess.Process, question: Question) -> tuple[bytes, Told]:
    try:
        out, said = await asyncio.wait_for(
            process.communicate(msgspec.json.encode(question)), question.timeout_s + GRACE_S
        )
    except TimeoutError as error:
        raise StatementError(f"no answer within {question.timeout_s:g} s; narrow the statement") from error
    finally:
        await _ended(process)
    head, _, body = out.partition(b"\n")
    if process.returncode != 0 or not head:
        _log.warning(
            "a statement's process ended with %s: %s", process.returncode, said[-500:].decode("utf-8", "replace")
        )
        raise StatementError("the statement needs more memory or time than one may have; narrow it")
    return body, msgspec.json.decode(head, type=Told)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Kills the process unless it has ended, and waits for that, however often the caller is cancelled."""
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            process.kill()
    waiting = asyncio.ensure_future(process.wait())
    while not waiting.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(waiting)
