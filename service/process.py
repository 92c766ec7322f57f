"""What every child process of the supervisor does about its parent and about signals.

guard_child()                  first call of a child: it ends when its supervisor ends, however that ends
install_stop_handler(f, 4.8)   SIGTERM and SIGINT call f once; after 4.8 s the process is gone in any case
leave(0)                       last call of a process that has closed everything: it ends without the clean-up
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from service.settings import supervisor_pid

PR_SET_PDEATHSIG = 1
POLL_S = 0.5
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
EXIT_DEADLINE = 70
"""Exit code of a process that did not stop in time (EX_SOFTWARE)."""


def guard_child(ending: signal.Signals = signal.SIGTERM) -> None:
    """Tie this process to its parent: a signal when the parent ends, by kill -9 too. Call it from the main thread.

    On Linux the kernel sends the signal; elsewhere a thread looks every half second. A parent that ended before
    this call is noticed too, because the supervisor tells its children its pid. `ending`: SIGKILL is for a process
    that has nothing to close; it ends one that is stopped, too, which SIGTERM does only once it goes on.
    """
    expected = supervisor_pid() or os.getppid()
    if not _kernel_guard(ending):
        threading.Thread(target=_poll_parent, args=(expected, ending), name="parent-guard", daemon=True).start()
    if os.getppid() != expected:
        os.kill(os.getpid(), ending)


def _kernel_guard(ending: signal.Signals) -> bool:
    """Ask the kernel for a signal at the parent's death; False where there is no such call."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(PR_SET_PDEATHSIG, int(ending), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _poll_parent(expected: int, ending: signal.Signals) -> None:
    """Off Linux: wait until the parent changes, then send this process the signal."""
    pause = threading.Event()
    while os.getppid() == expected:
        pause.wait(POLL_S)
    os.kill(os.getpid(), ending)


def install_stop_handler(callback: Callable[[], None], deadline_s: float) -> Callable[[], None]:
    """Call `callback` once, after the first SIGTERM, SIGINT or (unless nohup said otherwise) SIGHUP.

    `deadline_s` seconds later the process ends in any case, with exit code 70 and a line on standard error. Both
    happen on threads of their own, so they work while the main thread is inside a long C call, and the callback may
    take locks: a Python signal handler may not, because it can interrupt the thread that holds them, itself included
    (a kill -9 of a parent with several threads sends its children the death signal more than once).
    Call it from the main thread, and so the function that it returns, which puts the former handlers back.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def handle(signum: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # full: the thread has more than enough to read
            writer.send(bytes([signum]))

    taken = [s for s in STOP_SIGNALS if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
    former = {signum: signal.signal(signum, handle) for signum in taken}
    # The interpreter writes the signal's number at once; handle() does so too, for when a loop takes this over.
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if previous != -1:
        signal.set_wakeup_fd(previous)

    def watch() -> None:
        while not (received := set(reader.recv(64))) & set(STOP_SIGNALS):
            if not received:  # put_back() has closed the other end
                reader.close()
                return
        threading.Thread(target=_end_at_deadline, args=(deadline_s,), name="stop-deadline", daemon=True).start()
        callback()

    def put_back() -> None:
        for signum, handler in former.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(previous)
        writer.close()

    threading.Thread(target=watch, name="stop-signals", daemon=True).start()
    return put_back


def leave(code: int) -> NoReturn:
    """End this process now with `code`: what is printed is flushed, nothing else is cleaned up or waited for.

    For a process that has closed all that others depend on: taking a large interpreter apart costs up to a second.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a reader that is gone is no reason to stay
            stream.flush()
    os._exit(code)


def _end_at_deadline(deadline_s: float) -> None:
    threading.Event().wait(deadline_s)
    with contextlib.suppress(OSError):
        os.write(2, f"pid {os.getpid()} did not stop within {deadline_s:g} s of being told to; it ends now\n".encode())
    os._exit(EXIT_DEADLINE)
