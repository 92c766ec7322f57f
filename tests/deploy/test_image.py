"""The image of the server: what its Dockerfile says, what is installed from the lock, and how a container starts."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import tomllib
import types

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.stack_files import ROOT, tool

DOCKERFILES = sorted((ROOT / "deploy" / "docker").glob("*Dockerfile"))


def instructions(path: pathlib.Path) -> list[tuple[str, str]]:
    """Each instruction with the rest of its line, continued lines joined, comments left out."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def server() -> list[tuple[str, str]]:
    return instructions(ROOT / "deploy" / "docker" / "Dockerfile")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path):
    done = subprocess.run([tool("hadolint"), "--no-color", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_bases_are_pinned_and_the_last_stage_is_nobodys_root(path):
    found = instructions(path)
    defaults = dict(rest.split("=", 1) for what, rest in found if what == "ARG" and "=" in rest)
    for what, rest in found:
        assert what.isupper()
        assert what not in ("ADD", "MAINTAINER", "ONBUILD", "SHELL")
        if what == "FROM" and rest != "${BASE}":  # that one is pinned where it is given, in compose.yaml
            image = re.sub(r"\$\{(\w+)\}", lambda name: defaults[name[1]], rest.split()[0])
            assert re.fullmatch(r"[a-z]+:\d+\.\d+\.\d+-[a-z-]+", image), image
    last = max(index for index, (what, _) in enumerate(found) if what == "FROM")
    users = [rest for what, rest in found[last:] if what == "USER"]
    assert users == ["10001:10001"]
    assert not [rest for what, rest in found[last:] if what == "RUN" and "pip" in rest]


def test_whatever_pip_installs_is_checked_by_hash_but_torch_and_helios_itself(server):
    installs = [rest for what, rest in server if what == "RUN" and "pip install" in rest]
    unchecked = [rest for rest in installs if "--require-hashes --no-deps" not in rest]
    assert len(installs) == 5
    assert [("torch.txt" in rest, "-e ." in rest) for rest in unchecked] == [(True, False), (False, True)]
    assert "--constraint /tmp/lock/pins.txt" in unchecked[0]
    assert "--no-deps --no-build-isolation" in unchecked[1]


def test_kernels_are_compiled_and_health_is_asked_where_compose_serves(server):
    of = dict(server)
    assert any("python -m scheduler.kernels" in rest for what, rest in server if what == "RUN")
    assert "http://127.0.0.1:8000/health/live" in of["HEALTHCHECK"]
    assert of["ENTRYPOINT"] == '["helios-entrypoint"]'
    assert of["CMD"] == '["serve"]'


def test_no_weights_are_baked_in_but_the_packaged_ones(server):
    weights = [rest for what, rest in server if what == "RUN" and "model.txt" in rest]
    assert len(weights) == 1
    assert weights[0].startswith('if [ "$MODEL" = smollm2 ]')
    assert ("ARG", "MODEL=smollm2") in server


def test_every_copied_file_reaches_the_builder_and_nothing_else_does(server):
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"]
    copied = [rest.split() for what, rest in server if what == "COPY" and "--from=" not in rest]
    sources = {word for words in copied for word in words[:-1] if not word.startswith("--")}
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == name or source.startswith(f"{name}/") for name in kept), source
    assert {name for name in kept if not any(fnmatch.fnmatch(source, f"{name}*") for source in sources)} == set()


@pytest.fixture(scope="module")
def runtime_lock() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("runtime_lock", ROOT / "deploy" / "runtime_lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cut(runtime_lock, tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("lock")
    assert runtime_lock.main([str(folder)]) == 0
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def asked_for(package: str, extras: frozenset[str]) -> set[str]:
    """Names of what an installed package asks for on this machine."""
    found = set()
    for line in importlib.metadata.requires(package) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found.add(canonicalize_name(requirement.name))
    return found


def test_the_servers_part_of_the_lock_is_whole(cut):
    """By what the installed packages say themselves, which the cut does not look at."""
    names = {canonicalize_name(line.split("==")[0]) for line in cut["pins.txt"].splitlines()}
    ours = importlib.metadata.requires("helios-serving") or []
    roots = [requirement for requirement in map(Requirement, ours) if requirement.marker is None]
    assert len(roots) > 20
    extras = {canonicalize_name(root.name): frozenset(root.extras) for root in roots}
    missing = {root for root in extras if root not in names} - {"torch"}
    for name in [*names, "torch"]:
        cuda = {asked for asked in asked_for(name, frozenset()) if asked.startswith(("nvidia-", "cuda-", "triton"))}
        missing |= asked_for(name, extras.get(name, frozenset())) - names - cuda
    assert missing == set()


def test_the_servers_part_of_the_lock_has_nothing_of_the_tests(cut):
    names = {line.split("==")[0] for line in cut["pins.txt"].splitlines()}
    assert not names & {"pytest", "hypothesis", "mypy", "ruff", "playwright", "duckdb", "pandas", "openai"}
    lock = (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8")
    assert cut["runtime.txt"].count("--hash=sha256:") > len(names)
    assert all(line in lock for line in cut["runtime.txt"].splitlines())
    assert re.fullmatch(r"torch==[0-9.]+\n", cut["torch.txt"])


@pytest.mark.parametrize("extra", ["cuda12", "cuda13"])
def test_what_a_gpu_needs_is_locked_beside_the_servers_part(runtime_lock, extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {canonicalize_name(Requirement(line).name) for line in project["optional-dependencies"][extra]}
    packages = runtime_lock.entries((ROOT / "requirements" / f"{extra}.txt").read_text(encoding="utf-8"))
    assert asked <= set(packages)
    assert all("--hash=sha256:" in text for text in packages.values())
    locked = runtime_lock.entries((ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8"))
    assert not set(packages) & set(locked)


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Runs the entrypoint with a `helios` that says what it was given; returns its lines."""
    (tmp_path / "bin").mkdir()
    helios = tmp_path / "bin" / "helios"
    helios.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\necho "PGPASSFILE=${PGPASSFILE:-}"\n')
    helios.chmod(0o755)
    (tmp_path / "tmp").mkdir()

    def start(*words: str, **environment: str) -> list[str]:
        env = {"PATH": f"{helios.parent}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp"), **environment}
        script = ROOT / "deploy" / "docker" / "entrypoint.sh"
        done = subprocess.run(["sh", script, *words], env=env, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return start


def test_a_container_passes_its_words_on_as_they_are(started):
    assert started("serve", "--model", "a b", "") == ["serve", "--model", "a b", "", "PGPASSFILE="]


def test_the_password_becomes_libpqs_file_and_nothing_else(started, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a:b\\c")
    said = started("serve", HELIOS_DATABASE_PASSWORD_FILE=str(secret))
    made = tmp_path / "tmp" / "pgpass"
    assert said == ["serve", f"PGPASSFILE={made}"]
    assert made.read_text().rstrip("\n") == "*:*:*:*:a\\:b\\\\c"
    assert made.stat().st_mode & 0o777 == 0o600


def test_compiled_kernels_are_laid_into_the_volume_once(started, tmp_path):
    image = tmp_path / "kernels"
    (image / "0.1-aaaa" / "sub").mkdir(parents=True)
    (image / "0.1-aaaa" / "sub" / "one").write_text("of the image")
    volume = tmp_path / "data" / "kernels"
    environment = {"HELIOS_COMPILED_KERNELS": str(image), "NUMBA_CACHE_DIR": str(volume)}
    started("serve", **environment)
    kept = volume / "0.1-aaaa" / "sub" / "one"
    assert kept.read_text() == "of the image"
    kept.write_text("compiled here")
    (image / "0.2-bbbb").mkdir()
    started("serve", **environment)
    assert kept.read_text() == "compiled here"
    assert sorted(path.name for path in volume.iterdir()) == ["0.1-aaaa", "0.2-bbbb"]
