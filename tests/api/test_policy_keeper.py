"""The engine is looked after on every connection, and while it may hold a withdrawn policy."""

from __future__ import annotations

import asyncio
import contextlib
import types

import msgspec
import pytest
from fake_engine import READY

from service.api import policy_keeper
from service.control.errors import ChangeInProgress
from service.ipc.errors import PolicyRejected
from service.store.errors import StoreUnavailable


class Control:
    """Notes what it is asked; `errors` are raised first."""

    def __init__(self):
        self.owes_engine = False
        self.errors = []
        self.asked = asyncio.Queue()
        self.followed = 0
        self.behind = []

    async def reconcile(self, version):
        if self.errors:
            raise self.errors.pop(0)
        self.owes_engine = False
        self.asked.put_nowait(version)

    async def follow(self):
        self.followed += 1
        if self.behind:
            raise self.behind.pop(0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(policy_keeper, "POLL_S", 0)


@contextlib.asynccontextmanager
async def kept(engine, control, *tell):
    task = asyncio.create_task(policy_keeper.keep_policy(engine, control, *tell))
    try:
        async with asyncio.timeout(10):
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def some_rounds():
    for _ in range(50):
        await asyncio.sleep(0)


def test_each_connection_is_checked_once_even_to_the_same_engine():
    async def story():
        engine, control = types.SimpleNamespace(state="ready", ready=READY), Control()
        control.errors = [ChangeInProgress("wait")]
        async with kept(engine, control):
            assert await control.asked.get() == 1
            await some_rounds()
            assert control.asked.empty()
            engine.ready = msgspec.structs.replace(READY, policy_version=2)
            assert await control.asked.get() == 2

    asyncio.run(story())


def test_a_debt_to_the_engine_is_paid_on_the_same_connection():
    async def story():
        engine, control = types.SimpleNamespace(state="ready", ready=READY), Control()
        async with kept(engine, control):
            await control.asked.get()
            control.owes_engine = True
            await control.asked.get()
            await some_rounds()
            assert control.asked.empty()
            engine.state, control.owes_engine = "down", True
            await some_rounds()
            assert control.asked.empty()

    asyncio.run(story())


def test_a_store_that_cannot_say_which_policy_is_newest_is_told_until_it_can():
    async def story():
        engine, control, told = types.SimpleNamespace(state="ready", ready=READY), Control(), asyncio.Queue()
        control.errors = [ChangeInProgress("wait"), StoreUnavailable("away")]
        async with kept(engine, control, told.put_nowait):
            assert await told.get() == policy_keeper.UNCHECKED.format(READY.policy_version)
            assert await told.get() == ""
            assert await control.asked.get() == READY.policy_version

    asyncio.run(story())


def test_a_connection_that_was_checked_follows_the_store_whatever_fails_once(caplog):
    async def story():
        engine, control, told = types.SimpleNamespace(state="ready", ready=READY), Control(), []
        control.behind = [PolicyRejected("the engine already uses policy version 9"), StoreUnavailable("away")]
        async with kept(engine, control, told.append):
            await control.asked.get()
            before = control.followed
            await some_rounds()
            assert control.followed > before + 2
            assert control.asked.empty()
        assert told == [""]

    asyncio.run(story())
    assert [record.args for record in caplog.records] == [("away",)]  # a faster service is no trouble
