"""Writes requirements/lock.txt: every dependency but torch and the model, with the hashes of all platforms' files; and
requirements/cuda12.txt, cuda13.txt: what pyproject.toml's extras of these names need beside that.

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
        body = resolved(work, lock, ["pyproject-dependencies.in", "dev.in"])
        if body is None:
            return 1
        write(lock, body)
        (work / "lock.pins").write_text("\n".join(re.findall(r"^[A-Za-z0-9][^\s;\\]*", body, re.MULTILINE)) + "\n")
        for extra, asked in extras().items():
            (work / f"{extra}.in").write_text("\n".join(asked) + "\n", encoding="utf-8")
            own = ROOT / "requirements" / f"{extra}.txt"
            found = resolved(work, own, ["--constraint=lock.pins", f"{extra}.in"])
            if found is None:
                return 1
            write(own, without(found, package_names(body)))
    return 0


def extras() -> dict[str, list[str]]:
    """The optional dependencies of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, list[str]] = project["optional-dependencies"]
    return found


def resolved(work: pathlib.Path, target: pathlib.Path, arguments: list[str]) -> str | None:
    """What pip-compile finds, beginning from the versions in `target`; None when it failed, having said why."""
    result = work / target.name
    if target.exists() and "--upgrade" not in sys.argv[1:]:
        result.write_bytes(target.read_bytes())
    command = [sys.executable, "-m", "piptools", "compile", *OPTIONS, *sys.argv[1:], f"--output-file={target.name}"]
    done = subprocess.run([*command, *arguments], cwd=work, env=index_environment(), check=False)
    return result.read_text(encoding="utf-8").removeprefix(HEADER) if done.returncode == 0 else None


def package_names(body: str) -> set[str]:
    """The packages of a lock."""
    return set(re.findall(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==", body, re.MULTILINE))


def without(body: str, names: set[str]) -> str:
    """A lock less some of its packages."""
    parts = re.split(r"^(?=[A-Za-z0-9])", body, flags=re.MULTILINE)
    return "".join(part for part in parts if not package_names(part) & names)


def write(target: pathlib.Path, body: str) -> None:
    """Write a lock, and say so."""
    target.write_text(HEADER + body, encoding="utf-8")
    print(f"wrote {target.relative_to(ROOT)}: {len(package_names(body))} packages")


if __name__ == "__main__":
    sys.exit(main())
