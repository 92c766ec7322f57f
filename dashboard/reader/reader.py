"""Starts the dashboard's reader process, asks it, and replaces it when it has ended.

Each call has a socket pair of its own, one end of which the reader is handed over a control socket. So calls wait there
while a reader starts, a viewer who leaves closes the pair, and a reader that ends closes all of its pairs at once. No
path leads to them, so nobody else can ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

from dashboard.reader.messages import READY, Answer, Call, OtherEndClosed, Start, receive_answer, send
from service.settings import child_environment

_log = logging.getLogger(__name__)
PROGRAM = (sys.executable, "-m", "dashboard.reader.process")
ANSWER_S = 90.0
"""More than any view takes that still gets on: one waits and reads for a limited time (dashboard.reads)."""
PAUSE_S = 1.0
"""Between two starts, so that one that cannot start costs little."""
TRIES = 2
_GONE = "The part of the server that reads for the dashboard ended over this; reload the page to try again"
_FULL = "The dashboard is busy: other views are still being read. Try again in a moment"
_SLOW = "This was stopped after {:g} s; ask for a shorter span of time or fewer rows"


class ReaderFailed(Exception):
    """There is no answer; the text says to people what to do."""


class Reader:
    """One reader process of one service process; use it on the event loop of the main thread.

    `start`: what a process is told. It is started by `begin`, or by the first call.
    """

    def __init__(self, start: Start, program: Sequence[str] = PROGRAM, answer_s: float = ANSWER_S) -> None:
        self._start = start
        self._program = program
        self._answer_s = answer_s
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ending: list[subprocess.Popen[bytes]] = []
        self._started_at = -PAUSE_S
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process's, while one runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    async def begin(self) -> None:
        """Starts a process unless one runs; it is not waited for. Raises ReaderFailed."""
        await self._ready_control()

    async def answer(self, call: Call) -> Answer:
        """What Dash answers to the call. Cancelling the caller ends its queries. Raises ReaderFailed.

        A call whose process ends is asked once more: it only reads.
        """
        for _ in range(TRIES):
            control = await self._ready_control()
            try:
                async with asyncio.timeout(self._answer_s):
                    return await _asked(control, call)
            except TimeoutError:
                self._end(control)  # it would hold up every other view too
                raise ReaderFailed(_SLOW.format(self._answer_s)) from None
            except (OtherEndClosed, ConnectionError):
                self._end(control)
            except OSError:  # no more sockets, or none that may wait
                raise ReaderFailed(_FULL) from None
        raise ReaderFailed(_GONE)

    def close(self) -> None:
        """Ends the process."""
        self._end()
        for process in self._ending:
            process.wait()

    async def _ready_control(self) -> socket.socket:
        async with self._starting:
            if self.pid is None or self._control is None:
                await asyncio.sleep(self._started_at + PAUSE_S - time.monotonic())
                self._end()
                self._control = self._started()
            return self._control

    def _started(self) -> socket.socket:
        """The control socket of a new process. Not in a thread, whose end would end the process (service.process)."""
        self._started_at = time.monotonic()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*self._program, str(theirs.fileno())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    env=child_environment(os.getpid()),
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # where sessions share the processor, it takes none of the service's part
                )
        except OSError as error:
            ours.close()
            raise ReaderFailed(f"The dashboard's reader cannot be started: {error.strerror}") from error
        assert self._process.stdin is not None, "it has a pipe"
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(msgspec.json.encode(self._start))  # not an argument: an address may hold a password
        ours.setblocking(False)
        return ours

    def _end(self, control: socket.socket | None = None) -> None:
        """Ends the process, unless `control` is that of an earlier one. What it was asked is asked of the next one."""
        if self._process is None or (control is not None and control is not self._control):
            return
        code = self._process.poll()
        if code is not None:
            _log.warning("the dashboard's reader ended with %s; the next view starts another one", code)
        self._process.kill()
        # Not waited for: the system takes a while to take a large process apart.
        self._ending = [process for process in (*self._ending, self._process) if process.poll() is None]
        self._process = None
        if self._control is not None:
            self._control.close()
            self._control = None


async def _asked(control: socket.socket, call: Call) -> Answer:
    """The answer over a new pair of sockets. Raises OtherEndClosed and OSError."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            ours.setblocking(False)
            socket.send_fds(control, [READY], [theirs.fileno()])
        await send(ours, call)
        return await receive_answer(ours)
