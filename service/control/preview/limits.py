"""What keeps a preview from harming the server that runs beside it: the lowest priority and a limit of memory."""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource

_AUTOGROUP = pathlib.Path("/proc/self/autogroup")


def give_way(niceness: int, memory_bytes: int) -> None:
    """This process runs when others leave the processor alone, and gets no more than so much address space.

    Where Linux groups the processes of a session, only the session's own niceness counts between sessions, so that
    whoever starts this process gives it one. The idle class would stand still for minutes where every core is busy.
    """
    with contextlib.suppress(OSError):
        os.nice(niceness)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(niceness))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
