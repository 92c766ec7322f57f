"""docs/specification.md names the files that carry its rules: they exist, and no module of the scheduler is missing."""

from __future__ import annotations

import pathlib
import re

import pytest

NAMED = re.compile(r"`([\w/]+\.py)`")
SECTIONS = (
    "S1, S2, S12",
    "Requests",
    "S3",
    "S4",
    "S5",
    "Solo chunking",
    "S6",
    "S7, S8",
    "S9",
    "S10",
    "S11",
    "S13",
    "Liveness",
    "Replay",
)


@pytest.fixture(scope="module")
def text(root: pathlib.Path) -> str:
    return (root / "docs" / "specification.md").read_text(encoding="utf-8")


def named_files(text: str) -> tuple[set[str], set[str]]:
    """(modules, tests) from the repository's root. A section's last paragraph lists both, the rest of it tests only."""
    modules, tests = set(), set()
    for paragraph in text.split("\n\n"):
        listed, _, rest = paragraph.partition("Tests:") if paragraph.startswith("Modules:") else ("", "", paragraph)
        modules |= {f"scheduler/{name}" for name in NAMED.findall(listed)}
        tests |= {name if name.startswith("tests/") else f"tests/scheduler/{name}" for name in NAMED.findall(rest)}
    return modules, tests


def test_every_module_and_test_that_the_specification_names_exists(root, text):
    modules, tests = named_files(text)
    assert len(modules) > 50
    assert len(tests) > 25
    assert not sorted(name for name in modules | tests if not (root / name).is_file())


def test_every_module_of_the_scheduler_belongs_to_a_section(root, text):
    """A new module joins the "Modules:" line of the section whose rules it carries. The simulation decides nothing."""
    found = {str(file.relative_to(root)) for file in (root / "scheduler").rglob("[!_]*.py")}
    assert {name for name in found if "/simulation/" not in name} == named_files(text)[0]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_ends_with_its_modules_and_tests(text, section):
    bodies = [body for body in re.split(r"^## ", text, flags=re.MULTILINE) if re.match(rf"{section}\b", body)]
    assert bodies, f"no section {section}"
    for body in bodies:
        last = body.strip().split("\n\n")[-1]
        assert last.startswith("Modules:"), body[:40]
        assert " · Tests:" in " ".join(last.split()), body[:40]


def test_a_name_is_read_as_a_module_or_a_test_by_where_it_stands():
    section = "See `test_a.py`.\n\nModules: `b.py`,\n`kernels/c.py` · Tests: `traces/test_d.py`, `tests/cli/test_e.py`"
    assert named_files(section) == (
        {"scheduler/b.py", "scheduler/kernels/c.py"},
        {"tests/scheduler/test_a.py", "tests/scheduler/traces/test_d.py", "tests/cli/test_e.py"},
    )
