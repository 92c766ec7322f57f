"""An engine that is not there: it takes policy versions the way the real one does, in order, and can misbehave."""

from __future__ import annotations

import asyncio

import pytest

from service.control.policy import PolicyControl
from service.control.start import resolve_initial_policy
from service.settings import Settings


class FakeEngine:
    """`taken` are the versions in the order they took effect; `in_force` is the last one with its values.

    `failures` are raised by the next calls instead of taking the version; a failure `(error, "taken")` takes it and
    raises all the same, as when the acknowledgement is lost.
    """

    def __init__(self):
        self.taken = []
        self.in_force = None
        self.failures = []
        self.before = None
        self.hang = False

    async def apply(self, version, coefficients):
        if self.before is not None:
            await self.before(version)
        failure = self.failures.pop(0) if self.failures else None
        if failure is None or isinstance(failure, tuple):
            self.taken.append(version)
            self.in_force = (version, dict(coefficients))
        if failure is not None:
            raise failure[0] if isinstance(failure, tuple) else failure
        if self.hang:
            self.hang = False
            await asyncio.Event().wait()
        return len(self.taken)


@pytest.fixture
def fake_engine():
    return FakeEngine()


@pytest.fixture
def no_flags():
    return Settings(data_dir="/nowhere", database="", threads=1)


@pytest.fixture
def started_store(any_store, no_flags):
    """A store after the first start: version 1, balanced, applied."""
    resolve_initial_policy(any_store, no_flags)
    return any_store


@pytest.fixture
def control(started_store, fake_engine):
    return PolicyControl(started_store, fake_engine.apply, apply_timeout_s=0.2, mark_pause_s=0.0)
