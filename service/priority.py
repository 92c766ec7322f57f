"""How a process gives way to those that serve: what it has to do can wait some milliseconds, a token cannot."""

from __future__ import annotations

import contextlib
import os
import pathlib

NICENESS = 10
"""A tenth of an ordinary process's share where every core is taken: enough to keep up, and woken threads come first."""

_AUTOGROUP = pathlib.Path("/proc/self/autogroup")


def give_way(niceness: int = NICENESS) -> None:
    """Lower this process's priority. Call it before threads start: on Linux each has a niceness of its own.

    Where Linux groups the processes of a session (sched_autogroup), only the session's own niceness counts between
    sessions, and every child of the supervisor leads one.
    """
    os.nice(niceness)
    if os.getsid(0) != os.getpid():
        return  # the session is somebody's terminal, or a test's: what else runs in it keeps its share
    with contextlib.suppress(OSError):
        _AUTOGROUP.write_text(str(niceness))
