"""Each callback that can change something is marked for operators: by what its code can reach, not by a list."""

from __future__ import annotations

import ast
import pathlib

import dashboard

ROOT = pathlib.Path(dashboard.__file__).parent
CHANGING = {
    ("control", "change"), ("control", "rollback"), ("guards", "open"), ("guards", "end"), ("previews", "start"),
    ("previews", "cancel"),
}  # fmt: skip


def last_name(node: ast.expr) -> str:
    """`control` of `room.control` and of `control`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def calls(function: ast.AST) -> tuple[set[str], bool]:
    """The functions that a function calls by name, and whether it changes something itself."""
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    names = {node.id for node in called if isinstance(node, ast.Name)}
    changes = any(
        (last_name(node.func.value), node.func.attr) in CHANGING
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    )
    return names, changes


def decorators(function: ast.AsyncFunctionDef | ast.FunctionDef) -> set[str]:
    found = (node.func if isinstance(node, ast.Call) else node for node in function.decorator_list)
    return {last_name(node) for node in found}


def test_a_callback_that_can_change_something_is_for_operators():
    functions: dict[str, tuple[set[str], bool]] = {}
    callbacks: list[ast.AsyncFunctionDef] = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
                if "callback" in decorators(node):
                    assert isinstance(node, ast.AsyncFunctionDef), node.name
                    callbacks.append(node)
                elif not node.name.startswith(("register", "_register")):
                    names, changes = functions.get(node.name, (set(), False))
                    found, more = calls(node)
                    functions[node.name] = names | found, changes or more

    def can_change(function: ast.AST) -> bool:
        names, changes = calls(function)
        seen: set[str] = set()
        while names and not changes:
            seen |= names
            reached = [functions[name] for name in names if name in functions]
            changes = any(one[1] for one in reached)
            names = {name for one in reached for name in one[0]} - seen
        return changes

    changing = [function for function in callbacks if can_change(function)]
    assert len(changing) >= 4
    assert [function.name for function in changing if "operators_only" not in decorators(function)] == []
    marked = [function.name for function in callbacks if "operators_only" in decorators(function)]
    assert sorted(marked) == sorted(function.name for function in changing)
