"""Runs the tests in two pytest processes: those that wait for whole servers and browsers beside all others.

python tests/in_two.py            both, the second's output behind the first's; exit code 1 when either fails
python tests/in_two.py ARGS       one pytest with these arguments
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

WAITING = ("tests/e2e", "tests/faults", "tests/browser")
PYTEST = (sys.executable, "-m", "pytest")


def main(arguments: list[str]) -> int:
    """Run them; the exit code."""
    if arguments:
        return subprocess.run([*PYTEST, *arguments], check=False).returncode
    with tempfile.TemporaryFile() as output:
        waiting = subprocess.Popen([*PYTEST, *WAITING], stdout=output, stderr=subprocess.STDOUT)
        try:
            others = subprocess.run([*PYTEST, *(f"--ignore={path}" for path in WAITING)], check=False).returncode
            print(f"\nNow the tests of {', '.join(WAITING)}, which run beside the others:", flush=True)
            code = waiting.wait()
        finally:
            waiting.terminate()
        output.seek(0)
        sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
    return int(bool(others or code))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
