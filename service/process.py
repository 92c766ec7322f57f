"""What every child process of the supervisor does about its parent and about signals.

guard_child()                  first call of a child: it ends when its supervisor ends, however that ends
install_stop_handler(f, 4.8)   SIGTERM and SIGINT call f once; after 4.8 s the process is gone in any case
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

from service.settings import supervisor_pid

PR_SET_PDEATHSIG = 1
POLL_S = 0.5
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
EXIT_DEADLINE = 70
"""Exit code of a process that did not stop in time (EX_SOFTWARE)."""


def guard_child() -> None:
    """Tie this process to its parent: SIGTERM when the parent ends, by kill -9 too. Call it from the main thread.

    On Linux the kernel sends the signal; elsewhere a thread looks every half second. A parent that ended before
    this call is noticed too, because the supervisor tells its children its pid.
    """
    expected = supervisor_pid() or os.getppid()
    if not _kernel_guard():
        threading.Thread(target=_poll_parent, args=(expected,), name="parent-guard", daemon=True).start()
    if os.getppid() != expected:
        os.kill(os.getpid(), signal.SIGTERM)


def _kernel_guard() -> bool:
    """Ask the kernel for SIGTERM at the parent's death; False where there is no such call."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _poll_parent(expected: int) -> None:
    """Off Linux: wait until the parent changes, then send this process SIGTERM."""
    pause = threading.Event()
    while os.getppid() == expected:
        pause.wait(POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)


class _Deadline:
    """Ends the process `deadline_s` after start() was called for the first time."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._started = threading.Event()
        threading.Thread(target=self._run, name="stop-deadline", daemon=True).start()

    def start(self) -> None:
        self._started.set()

    def _run(self) -> None:
        self._started.wait()
        threading.Event().wait(self._deadline_s)
        message = f"pid {os.getpid()} did not stop within {self._deadline_s:g} s of being told to; it ends now\n"
        with contextlib.suppress(OSError):
            os.write(2, message.encode())
        os._exit(EXIT_DEADLINE)


def install_stop_handler(callback: Callable[[], None], deadline_s: float) -> None:
    """Call `callback` once, at the first SIGTERM, SIGINT or (unless nohup said otherwise) SIGHUP; end the process `deadline_s` seconds later at the latest.

    The callback runs on the main thread between two bytecodes, so it only sets a flag or wakes a loop. The
    deadline starts when the signal arrives, even while the main thread is inside a long C call: a thread
    reads the interpreter's wake-up socket. A loop that claims that socket for itself (asyncio does) loses only this.
    Call it from the main thread.
    """
    deadline = _Deadline(deadline_s)
    called = False

    def handle(_signum: int, _frame: FrameType | None) -> None:
        nonlocal called
        deadline.start()
        if not called:
            called = True
            callback()

    for signum in STOP_SIGNALS:
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, handle)
    _watch_wakeups(deadline)


def _watch_wakeups(deadline: _Deadline) -> None:
    """Start the deadline from a thread of its own, at the moment when a stop signal reaches the process."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if previous != -1:
        signal.set_wakeup_fd(previous)
        reader.close()
        writer.close()
        return

    def watch() -> None:
        with reader, writer:  # the thread owns both ends for the life of the process
            while received := reader.recv(64):
                if set(received) & set(STOP_SIGNALS):
                    deadline.start()

    threading.Thread(target=watch, name="stop-signals", daemon=True).start()
