"""An engine follows what other processes on the database apply, and several services of one engine do not quarrel."""

from __future__ import annotations

import asyncio

import pytest

from service.control.errors import StalePolicy
from service.control.policy import PolicyControl
from service.control.versions import refuse_withdrawn
from service.ipc.errors import PolicyRejected
from service.store.engines import write_transaction


def change(control, version, value):
    return control.change(expected_version=version, coefficients={"token_fairness": value}, actor="op")


@pytest.fixture
def elsewhere(started_store, fake_engine):
    """Another host: a control with an engine of its own, on the same database."""
    engine = type(fake_engine)()
    return PolicyControl(started_store, engine.apply, mark_pause_s=0.0), engine


def test_an_engine_elsewhere_gets_each_version_once_it_is_applied(control, fake_engine, elsewhere):
    async def story():
        there, engine = elsewhere
        assert not await there.follow(), "a connection is checked first"
        await there.reconcile(1)
        for version, value in ((1, 20), (2, 30), (3, 40)):
            await change(control, version, value)
            assert await there.follow()
            assert not await there.follow()
            assert engine.in_force == fake_engine.in_force
        assert engine.taken == [2, 3, 4]

    asyncio.run(story())


def test_a_version_that_still_waits_for_its_own_engine_reaches_no_other(control, fake_engine, elsewhere):
    async def story():
        there, engine = elsewhere
        await there.reconcile(1)
        looked = []

        async def before(version):
            if version == 2:
                looked.append(await there.follow())

        fake_engine.before = before
        await change(control, 1, 20)
        assert looked == [False]
        assert engine.in_force[0] == 1
        await there.follow()
        assert engine.in_force[0] == 2

    asyncio.run(story())


def test_a_version_that_is_refused_after_others_followed_it_is_taken_back_there(control, started_store, elsewhere):
    """Its own process took it back, as it could not know that the store had it as applied."""

    async def story():
        there, engine = elsewhere
        await there.reconcile(1)
        await change(control, 1, 20)
        await there.follow()
        with write_transaction(started_store) as connection:
            refuse_withdrawn(connection, [2])
        assert await there.follow()
        assert engine.in_force[0] == 1
        assert not await there.follow()

    asyncio.run(story())


def test_two_services_of_one_engine_tell_it_the_same_and_nothing_flaps(started_store, fake_engine):
    async def story():
        one, two = (PolicyControl(started_store, fake_engine.apply, mark_pause_s=0.0) for _ in range(2))
        for control in (one, two):
            await control.reconcile(1)
        done = asyncio.Event()
        trouble = []

        async def follow(control):
            while not done.is_set():
                try:
                    await control.follow()
                except PolicyRejected as error:  # the other one was faster
                    trouble.append(str(error))
                await asyncio.sleep(0)

        followers = [asyncio.create_task(follow(control)) for control in (one, two)]
        version = 1
        for number in range(30):
            version = (await change((one, two)[number % 2], version, 20 + number)).version
            with pytest.raises(StalePolicy):
                await change((two, one)[number % 2], version - 1, 99)
        done.set()
        await asyncio.gather(*followers)
        assert fake_engine.taken == list(range(2, 32)), "each version once, in order"
        assert fake_engine.in_force[0] == version == 31
        assert all("already uses" in why for why in trouble)

    asyncio.run(story())
