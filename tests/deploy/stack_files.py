"""The files of the stack, as they are committed, and as Docker Compose reads them (which needs no container engine)."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping

from needs import missing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMPOSE = "the stack's files are read by docker-compose and hadolint of requirements/dev.in: make setup"


def tool(name: str) -> str:
    """A program of the environment that runs the tests, else of PATH; ends the test without one."""
    beside = pathlib.Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    return found or missing(COMPOSE)


def compose(*files: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`docker-compose config` of the files, with nothing but `environment` to take variables from."""
    named = [word for file in files for word in ("-f", str(file))]
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment}
    command = [tool("docker-compose"), "--project-directory", str(ROOT), *named, "config", "--format", "json"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@functools.cache
def stack(*over: str, options: str = "") -> dict:
    """compose.yaml and the files `over` it, as Compose resolves them; not to be changed. `options`: HELIOS_OPTIONS."""
    files = [ROOT / name for name in ("compose.yaml", *over)]
    done = compose(*files, **({"HELIOS_OPTIONS": options} if options else {}))
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """Each key replaced by its value; a key must be there exactly once, so that a renamed address is noticed."""
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    return text
