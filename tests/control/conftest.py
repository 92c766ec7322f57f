"""The engine's own command handling, behind a connection that tests can disturb."""

from __future__ import annotations

import asyncio
import pathlib
import sys
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # tests import `guard_bench` and `trace_rows` by name

from guard_bench import Bench

from scheduler.catalog import Catalog
from scheduler.policy import PolicyConfig
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import GraphKind, GraphShape
from service.control.policy import PolicyControl
from service.control.start import resolve_initial_policy
from service.engine.commands import apply_command
from service.engine.core import Core
from service.ipc.errors import EngineUnavailable, PolicyRejected
from service.ipc.messages import ConfigurePolicy, EngineReady, encode, to_engine_decoder
from service.journal.records import PolicyApplied
from service.settings import Settings

SHAPES = (GraphShape(GraphKind.PREFILL, 1, prefill_capacity=64), GraphShape(GraphKind.DECODE, 1))


def engine_core(version, policy):
    """A worker's state with nothing but what policy commands need."""
    return Core(
        scheduler=RequestScheduler(Catalog(SHAPES), policy),
        device=None,
        metrics=types.SimpleNamespace(policy=lambda _version, _policy: None),
        clock=lambda: 0,
        ready=EngineReady("run-1", 1, version, 512, 64, 16, 100),
        policy=policy,
        policy_version=version,
        queue_limit=1,
    )


class DisturbedEngine:
    """Takes versions with the worker's own code.

    `failures` are raised by the next calls, before the engine sees the message; a failure `(error, "taken")` is raised
    after it. `disturb(command)` says what happens to a command: None, "lost", "unanswered" (taken) or "late" (kept in
    `late` until `deliver`). `hang`: the next command is taken and never answered. `before(version)` is awaited first.
    """

    def __init__(self):
        self.failures = []
        self.before = None
        self.disturb = lambda _command: None
        self.hang = False
        self.restart()

    def restart(self, version=1, policy=None):
        """Another engine, which starts with this version."""
        self.core = engine_core(version, policy or PolicyConfig.balanced())
        self.received = []
        self.late = []

    @property
    def taken(self):
        """The versions after the start in the order in which they took effect."""
        return [record.version for record in self.core.records if isinstance(record, PolicyApplied)]

    @property
    def in_force(self):
        assert self.core.scheduler.policy == self.core.policy
        assert self.core.ready.policy_version == self.core.policy_version
        return self.core.policy_version, self.core.policy.as_dict()

    def deliver(self, command):
        """The command reaches the engine now; its answer."""
        self.received.append((command.version, command.withdraws))
        apply_command(self.core, b"A", to_engine_decoder.decode(encode(command)))
        (answer,) = self.core.outbox.pop(b"A")
        assert (answer.version, answer.withdraws) == (command.version, command.withdraws)
        return answer

    async def apply(self, version, coefficients, *, withdraws=None):
        if self.before is not None:
            await self.before(version)
        command = ConfigurePolicy(version, coefficients, withdraws)
        failure = self.failures.pop(0) if self.failures else None
        fate = self.disturb(command)
        if fate == "late":
            self.late.append(command)
        elif fate != "lost" and (failure is None or isinstance(failure, tuple)):
            answer = self.deliver(command)
        if fate is not None:
            raise EngineUnavailable(f"{fate}: the engine did not acknowledge policy version {version}")
        if failure is not None:
            raise failure[0] if isinstance(failure, tuple) else failure
        if self.hang:
            self.hang = False
            await asyncio.Event().wait()
        if answer.error is not None:
            raise PolicyRejected(answer.error)
        return answer.fence


@pytest.fixture
def fake_engine():
    return DisturbedEngine()


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


@pytest.fixture
def bench(store, fake_engine, no_flags):
    """On SQLite; what differs between the databases is tested on both."""
    resolve_initial_policy(store, no_flags)
    return Bench(store, fake_engine)


@pytest.fixture
def any_bench(started_store, fake_engine):
    return Bench(started_store, fake_engine)
