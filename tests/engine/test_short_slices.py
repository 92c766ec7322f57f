"""The engine asks Linux for short slices and keeps its priority."""

import platform
import subprocess
import sys

import pytest

CODE = """
import ctypes, os, struct
from service.engine.short_slices import ask_for_short_slices
os.nice(3)
took = ask_for_short_slices()
read = ctypes.create_string_buffer(56)
ctypes.CDLL(None).syscall({number}, 0, read, 56, 0)
fields = struct.unpack("=IIQiIQQQII", read.raw)
print(took, fields[1], fields[3] - os.getpriority(os.PRIO_PROCESS, 0), fields[5])
"""
GET_NUMBERS = {"x86_64": 315, "aarch64": 275}


@pytest.mark.skipif(
    platform.machine() not in GET_NUMBERS, reason="the system call's number is known for two processors"
)
def test_linux_grants_the_slice_without_a_change_of_class_or_niceness():
    code = CODE.format(number=GET_NUMBERS[platform.machine()])
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    took, policy, niceness, slice_ns = result.stdout.split()
    assert (took, policy, niceness) == ("True", "0", "0")
    if tuple(map(int, platform.release().split("-")[0].split(".")[:2])) >= (6, 12):
        assert slice_ns == "100000"
