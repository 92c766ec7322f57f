"""Kills a recorder between two steps of a transaction."""

from __future__ import annotations

from collections.abc import Callable


class Crash(BaseException):
    """A kill: nothing catches it."""


def crash_at(count: int) -> Callable[[str], None]:
    """A `step` that raises Crash after `count` steps."""
    steps = iter(range(count))

    def step(_name: str) -> None:
        if next(steps, None) is None:
            raise Crash

    return step
