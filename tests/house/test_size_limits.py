"""A module stops at 400 lines, a function at 60, so that each can be read in one sitting."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

FOLDERS = ("scheduler", "gpu", "service", "dashboard", "migrations", "deploy", "benchmarks", "tests")
FILE_LINES = 400
FUNCTION_LINES = 60


def long_functions(source: str) -> Iterator[tuple[str, int]]:
    """Name and lines of each function that is too long, without its decorators."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield node.name, lines


def test_no_file_and_no_function_is_too_long(root: pathlib.Path) -> None:
    problems = []
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*.py"))]
    assert len(files) > 50
    for file in files:
        source = file.read_text(encoding="utf-8")
        name = file.relative_to(root)
        lines = source.count("\n")
        if lines > FILE_LINES:
            problems.append(f"{name}: {lines} lines, at most {FILE_LINES}")
        problems += [f"{name}: {function}() has {size} lines" for function, size in long_functions(source)]
    assert not problems, "\n".join(problems)


def test_the_measure_itself_counts_to_the_last_line() -> None:
    body = "\n".join(["    pass"] * FUNCTION_LINES)
    assert list(long_functions(f"@cache\ndef long():\n{body}\n")) == [("long", FUNCTION_LINES + 1)]
    assert not list(long_functions(f"def fits():\n{body.removesuffix('pass').rstrip()}\n"))
