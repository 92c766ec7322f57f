"""The engine's threads ask Linux to be woken at once: each works for some tens of microseconds and then waits.

Since Linux 6.12 a thread may name the time slice that it wants. One that wants a shorter slice than the thread that
runs takes the processor when it is woken, instead of waiting for the end of the other's slice, which is milliseconds:
enough to be seen between two tokens. Its share of a processor stays what its priority says.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SLICE_NS = 100_000
"""The shortest that Linux grants."""

_SYSCALL_NUMBERS = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")
"""struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period, and two hints."""
_SCHED_OTHER = 0


def ask_for_short_slices() -> bool:
    """For this thread and those that it starts from now on. Whether Linux took it; before 6.12 it changes nothing.

    Needs no privilege and leaves the niceness as it is. False on other systems and processors.
    """
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, _SCHED_OTHER, 0, niceness, 0, SLICE_NS, 0, 0, 0, 0)
    refused: int = ctypes.CDLL(None).syscall(number, 0, ctypes.create_string_buffer(wanted), 0)
    return not refused
