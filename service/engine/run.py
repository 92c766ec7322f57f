"""The loop around the worker: sleep until there is something to do, and end in order."""

from __future__ import annotations

import os
import select
import traceback
from collections.abc import Callable
from typing import Any, Protocol, Self

import zmq

from service.engine.ports import Clock
from service.engine.worker import Worker
from service.ipc.server import message_waits

GRACE_NS = 4_000_000_000
"""How long after SIGTERM a running graph is waited for."""

EXIT_OK = 0
EXIT_FAILED = 1


class StopSignal:
    """A flag that a signal handler may raise, and that wakes the loop's poll."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.requested = False

    @property
    def fd(self) -> int:
        """Readable once a stop was requested."""
        return self._read_fd

    def request(self) -> None:
        """Ask the loop to stop. Safe in a signal handler."""
        self.requested = True
        os.write(self._write_fd, b"\0")

    def taken(self) -> None:
        """The loop has seen it."""
        os.read(self._read_fd, 1)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._read_fd)
        os.close(self._write_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Waiter(Protocol):
    """What the loop sleeps on."""

    def __call__(self, at_most_ns: int) -> None:
        """Return when a message, a result or a stop request waits, or after `at_most_ns`."""


class PollWaiter:
    """One poll over the socket's descriptor, the device's completion descriptor and the stop signal's.

    The socket's descriptor becomes readable when something changes, not while a message waits: so that is asked first.
    zmq's own poll does the same and takes a second system call for it.
    """

    def __init__(self, socket: zmq.Socket[bytes], completion_fd: int, stop_fd: int) -> None:
        self._socket = socket
        self._poller = select.poll()
        descriptor: Any = socket.get(zmq.FD)
        for fd in (descriptor, completion_fd, stop_fd):
            self._poller.register(fd, select.POLLIN)

    def __call__(self, at_most_ns: int) -> None:
        if at_most_ns <= 0 or message_waits(self._socket):
            return
        # Rounded up: a rounded-down timeout would turn the last millisecond into a busy loop.
        self._poller.poll(-(-at_most_ns // 1_000_000))


def run_worker(worker: Worker, stop: StopSignal, wait: Waiter, clock: Clock) -> int:
    """Serve until a stop is requested; returns the process's exit code. Closes nothing.

    After the request every stream ends at once, and a running graph gets GRACE_NS to finish. An unexpected error
    ends the run as failed: it is written to the journal, told to the clients and printed.
    """
    deadline_ns: int | None = None
    try:
        while True:
            worker.step()
            now_ns = clock()
            if stop.requested and deadline_ns is None:
                stop.taken()
                deadline_ns = now_ns + GRACE_NS
                worker.begin_stop()
            elif deadline_ns is not None and (worker.drained or now_ns >= deadline_ns):
                worker.finish("stopped")
                return EXIT_OK
            else:
                left_ns = worker.wait_ns()
                wait(left_ns if deadline_ns is None else min(left_ns, max(0, deadline_ns - now_ns)))
    except Exception as error:  # the one place that catches everything: the run must end as failed, not silently
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
        _quietly(lambda: worker.fail(why))
        return EXIT_FAILED


def _quietly(action: Callable[[], None]) -> None:
    """Whatever broke the loop may break its last words too; they are worth a try."""
    try:
        action()
    except Exception:
        traceback.print_exc()
