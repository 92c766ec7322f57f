"""Packages depend on each other in one direction, and the environment is read in one place."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
import tomllib

PACKAGES = ("scheduler", "gpu", "service", "dashboard", "migrations")
READS_ENVIRONMENT = {"service/settings.py"}


def test_the_one_way_rule_holds(root: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_a_new_module_of_the_scheduler_is_closed_to_gpu_and_to_the_reference(root: pathlib.Path) -> None:
    """Both contracts name what is forbidden, so a module that neither allows nor forbids would slip in."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "forbidden"]
    modules = {f"scheduler.{path.stem}" for path in (root / "scheduler").iterdir() if not path.stem.startswith("__")}
    for source, allowed in (
        ("gpu", {"shapes", "records", "errors", "plans"}),
        ("scheduler.reference", {"shapes", "policy", "errors", "plans", "reference"}),
    ):
        forbidden = {name for c in contracts if source in c["source_modules"] for name in c["forbidden_modules"]}
        assert modules - forbidden == {f"scheduler.{name}" for name in allowed}, source


def reads_environment(source: str) -> bool:
    """Whether the module uses os.environ or os.getenv, by whatever import."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"):
            return True
        imported = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
        if imported & {"environ", "environb", "getenv"}:
            return True
    return False


def test_the_environment_is_read_in_settings_and_nowhere_else(root: pathlib.Path) -> None:
    found = {
        str(file.relative_to(root))
        for package in PACKAGES
        for file in (root / package).rglob("*.py")
        if reads_environment(file.read_text(encoding="utf-8"))
    }
    assert found == READS_ENVIRONMENT
