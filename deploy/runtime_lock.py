"""Cuts requirements/lock.txt down to what the server needs, hashes and all: `python deploy/runtime_lock.py FOLDER`.

The lock also holds what tests and linters need. pip-compile notes under each package who asks for it, so that the
server's part follows from the lock alone. Standard library only: the image's build runs it before it installs anything.
Writes FOLDER/runtime.txt (for `pip install --require-hashes --no-deps`), FOLDER/pins.txt (the same versions as
constraints) and FOLDER/torch.txt (the version of torch, which has no hash: people choose its index).
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ASKED_BY_SERVER = "-r pyproject-dependencies.in"
BESIDE_TORCH = ("filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy")
"""What torch asks for and requirements/dev.in therefore names; setuptools also installs Helios itself."""
_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>\S+)")
_REASON = re.compile(r"^    # (?:via |  )(?P<reason>\S.*)$", re.MULTILINE)


def entries(lock: str) -> dict[str, str]:
    """Each package's lines in the lock, by its name."""
    found = {}
    for part in re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)[1:]:
        match = _ENTRY.match(part)
        if match is None:
            raise ValueError(f"not an entry of a lock: {part.splitlines()[0]}")
        found[match["name"]] = part
    return found


def needed(packages: dict[str, str]) -> list[str]:
    """Names of the packages that the server asks for, and of those that these ask for, in the lock's order."""
    reasons = {name: set(_REASON.findall(text)) for name, text in packages.items()}
    wanted = {name for name, why in reasons.items() if ASKED_BY_SERVER in why} | set(BESIDE_TORCH)
    while more := {name for name, why in reasons.items() if why & wanted} - wanted:
        wanted |= more
    return [name for name in packages if name in wanted]


def main(arguments: list[str]) -> int:
    """Write the three files; 2 when called wrongly."""
    if len(arguments) != 1:
        print("usage: python deploy/runtime_lock.py FOLDER", file=sys.stderr)
        return 2
    packages = entries((ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    torch = re.search(r'"(torch==[0-9.]+)"', project)
    if torch is None:
        print("runtime_lock: pyproject.toml names no torch==VERSION", file=sys.stderr)
        return 1
    names = needed(packages)
    pins = [f"{name}=={_ENTRY.match(packages[name])['version']}" for name in names]  # type: ignore[index]
    folder = pathlib.Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    hashed = [packages[name].rstrip() for name in names]
    for file, lines in {"runtime.txt": hashed, "pins.txt": pins, "torch.txt": [torch[1]]}.items():
        (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(names)} of {len(packages)} packages, and {torch[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
