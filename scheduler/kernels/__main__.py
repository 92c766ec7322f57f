"""`python -m scheduler.kernels`: compiles the kernels now, so that no later start waits for it.

Planning takes most of the time; what commits and completes is compiled by a second process beside it.
"""

import subprocess
import sys

from scheduler.kernels.loader import kernels_are_cached, load_kernels, load_module

_BESIDE = "from scheduler.kernels.loader import load_module; load_module('commitment')"


def main() -> None:
    """Compile every kernel into the cache."""
    if kernels_are_cached():
        load_kernels()
        return
    with subprocess.Popen([sys.executable, "-c", _BESIDE]) as beside:
        load_module("plan")
        if beside.wait():
            print("the second process failed; its kernels are compiled now", file=sys.stderr)
    load_kernels()


if __name__ == "__main__":
    main()
