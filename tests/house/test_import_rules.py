"""Packages depend on each other in one direction, and the environment is read in one place."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

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


VOCABULARY = {"shapes", "records", "plans", "policy", "errors"}
"""Modules of the scheduler that say what things are called and decide nothing."""


def scheduler_modules(source: str) -> set[str]:
    """The modules of the scheduler that a file imports: "shapes" for `from scheduler.shapes import GraphShape`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [node.module or ""]
            if node.module == "scheduler":
                names = [f"scheduler.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] if "." in name else "" for name in names if name.split(".")[0] == "scheduler"}
    return found


def outside(root: pathlib.Path, package: str, allowed: set[str]) -> dict[str, set[str]]:
    """What the package's files import of the scheduler beside `allowed`."""
    sources = {str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in (root / package).rglob("*.py")}
    found = {name: scheduler_modules(source) - allowed for name, source in sources.items()}
    return {name: modules for name, modules in found.items() if modules}


def test_the_vocabulary_imports_only_itself(root: pathlib.Path) -> None:
    """So that what may import it cannot reach anything else through it, but the plain checks of what it is given."""
    allowed = VOCABULARY | {"checks"}
    for name in allowed:
        assert scheduler_modules((root / "scheduler" / f"{name}.py").read_text(encoding="utf-8")) <= allowed


def test_the_reference_shares_only_the_vocabulary_with_what_it_checks(root: pathlib.Path) -> None:
    assert not outside(root, "scheduler/reference", VOCABULARY | {"reference"})


def test_the_gpu_package_imports_the_vocabulary_but_no_policy(root: pathlib.Path) -> None:
    """Also which shapes a catalog of some limits has, which is no policy."""
    assert not outside(root, "gpu", VOCABULARY - {"policy"} | {"capacity"})


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
