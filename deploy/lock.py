"""Writes requirements/lock.txt: every dependency but torch and the model, with the hashes of all platforms' files.

Run by `make lock`. Only the package index is asked: pip's configuration files, extra indexes and local folders of
wheels are ignored, so the lock is the same on every machine. torch is left out because people choose its wheel index
(see `TORCH_INDEX` in the Makefile); setup installs the exact version that pyproject.toml names.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER = """\
# Made by `make lock` from pyproject.toml and requirements/dev.in. Do not edit.
# torch and the model's weights are installed in steps of their own; see deploy/setup_environment.py.
"""
OPTIONS = [
    "--quiet",
    "--generate-hashes",
    "--allow-unsafe",
    "--unsafe-package=pip",
    "--strip-extras",
    "--no-header",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-emit-trusted-host",
    "--no-emit-options",
    "--no-config",
    "--resolver=backtracking",
    "--newline=lf",
]


def runtime_requirements() -> list[str]:
    """The dependencies in pyproject.toml without torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [line for line in project["dependencies"] if re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0] != "torch"]


def index_environment() -> dict[str, str]:
    """The environment without anything that would make pip look elsewhere than at its index."""
    elsewhere = {"PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX"}
    kept = {name: value for name, value in os.environ.items() if name not in elsewhere}
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


def main() -> int:
    """Resolve in a temporary folder, so that no path of this machine ends in the lock's comments."""
    lock = ROOT / "requirements" / "lock.txt"
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "pyproject-dependencies.in").write_text("\n".join(runtime_requirements()) + "\n", encoding="utf-8")
        (work / "dev.in").write_bytes((ROOT / "requirements" / "dev.in").read_bytes())
        if lock.exists() and "--upgrade" not in sys.argv[1:]:
            (work / "lock.txt").write_bytes(lock.read_bytes())
        command = [sys.executable, "-m", "piptools", "compile", *OPTIONS, *sys.argv[1:]]
        command += ["--output-file=lock.txt", "pyproject-dependencies.in", "dev.in"]
        done = subprocess.run(command, cwd=work, env=index_environment(), check=False)
        if done.returncode != 0:
            return done.returncode
        body = (work / "lock.txt").read_text(encoding="utf-8")
    lock.write_text(HEADER + body.removeprefix(HEADER), encoding="utf-8")
    print(f"wrote {lock.relative_to(ROOT)}: {len(re.findall('^[a-z0-9]', body, re.MULTILINE))} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
