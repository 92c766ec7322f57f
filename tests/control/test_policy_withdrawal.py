"""A version that never became the policy in force does not stay in the engine, whatever got lost and in what order."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest
import sqlalchemy as sa

from scheduler.policy import PolicyConfig
from service.control.errors import ChangeInProgress, ChangeRefused
from service.control.policy import PolicyControl, resolve_initial_policy
from service.control.proposals import ABANDONED_AFTER, Proposal, open_change
from service.ipc.errors import EngineUnavailable, PolicyRejected
from service.ipc.messages import ConfigurePolicy
from service.store.database import read_transaction
from service.store.tables import policy_versions

FIRST = (1, PolicyConfig.balanced().as_dict())


def run(coroutine):
    return asyncio.run(coroutine)


def change(control, version=1, **coefficients):
    return control.change(expected_version=version, coefficients=coefficients or {"token_fairness": 8}, actor="anna")


def states(store):
    with read_transaction(store) as connection:
        query = sa.select(policy_versions.c.state).order_by(policy_versions.c.version)
        return list(connection.scalars(query))


def fates(fake_engine, **by_version):
    """What happens to the first command of each version, given as v2="late"."""
    left = {int(name[1:]): fate for name, fate in by_version.items()}
    fake_engine.disturb = lambda command: left.pop(command.version, None)


def deliver_late(fake_engine):
    return [fake_engine.deliver(command) for command in fake_engine.late]


def test_a_version_that_reaches_the_engine_after_its_withdrawal_does_not_win(control, fake_engine, started_store):
    async def story():
        fates(fake_engine, v2="late")
        with pytest.raises(EngineUnavailable):
            await change(control)
        assert fake_engine.received == [(1, 2)]
        (answer,) = deliver_late(fake_engine)
        assert "withdrawn" in answer.error
        assert fake_engine.in_force == FIRST
        return await change(control, token_fairness=9)

    assert run(story()).version == 3
    assert fake_engine.in_force[0] == 3
    assert states(started_store) == ["applied", "refused", "applied"]


def test_a_withdrawal_that_the_engine_did_not_get_is_owed_and_settled_by_reconcile(control, fake_engine):
    async def story():
        fates(fake_engine, v2="unanswered", v1="lost")
        with pytest.raises(EngineUnavailable):
            await change(control)
        assert fake_engine.in_force[0] == 2
        assert control.owes_engine
        assert await control.reconcile(fake_engine.core.ready.policy_version) is True
        assert not control.owes_engine

    run(story())
    assert fake_engine.in_force == FIRST


def test_the_next_change_replaces_a_version_whose_withdrawal_was_lost(control, fake_engine):
    """Also when that change fails: its own withdrawal covers both."""

    async def story():
        fates(fake_engine, v2="late", v1="lost", v3="unanswered")
        with pytest.raises(EngineUnavailable):
            await change(control)
        with pytest.raises(EngineUnavailable):
            await change(control)
        deliver_late(fake_engine)

    run(story())
    assert fake_engine.received == [(3, None), (1, 3), (2, None)]
    assert fake_engine.in_force == FIRST


def test_an_engine_that_reports_a_refused_version_goes_back(control, fake_engine, started_store):
    """The service that withdrew it is gone; another one finds the engine with it."""

    async def story():
        fates(fake_engine, v2="unanswered", v1="lost")
        with pytest.raises(EngineUnavailable):
            await change(control)
        other = PolicyControl(started_store, fake_engine.apply)
        assert await other.reconcile(2) is True

    run(story())
    assert fake_engine.in_force == FIRST


def test_an_engine_with_the_right_version_is_told_of_a_withdrawn_one_that_may_be_on_its_way(control, fake_engine):
    async def story():
        fates(fake_engine, v2="late", v1="lost")
        with pytest.raises(EngineUnavailable):
            await change(control)
        assert await control.reconcile(1) is True
        deliver_late(fake_engine)

    run(story())
    assert fake_engine.in_force == FIRST


def test_a_version_that_a_restart_refused_while_the_new_engine_took_it_is_taken_back(
    control, fake_engine, started_store, no_flags
):
    async def story():
        async def restart(version):
            if version == 2:
                await asyncio.to_thread(resolve_initial_policy, started_store, no_flags)

        fake_engine.before = restart
        with pytest.raises(ChangeRefused):
            await change(control)

    run(story())
    assert fake_engine.taken == [2, 1]
    assert fake_engine.in_force == FIRST


def test_a_change_of_a_service_that_died_is_taken_back_after_a_minute(control, fake_engine, started_store):
    now = [dt.datetime.now(dt.UTC)]
    opened = open_change(started_store, Proposal(1, "bo", coefficients={"token_fairness": 8}), (), now[0])
    fake_engine.deliver(ConfigurePolicy(2, opened.pending.config.as_dict()))
    successor = PolicyControl(started_store, fake_engine.apply, now=lambda: now[0])

    async def story():
        with pytest.raises(ChangeInProgress):
            await successor.reconcile(2)
        assert fake_engine.in_force[0] == 2
        now[0] += ABANDONED_AFTER + dt.timedelta(seconds=1)
        assert await successor.reconcile(2) is True

    run(story())
    assert fake_engine.in_force == FIRST
    assert states(started_store) == ["applied", "refused"]


def test_a_late_withdrawal_does_not_take_back_a_newer_policy(control, fake_engine, started_store):
    """Another service's change came between: the engine keeps it, and the debt is settled."""

    async def story():
        fake_engine.disturb = lambda command: "late" if command.version in (1, 2) else None
        with pytest.raises(EngineUnavailable):
            await change(control)
        other = PolicyControl(started_store, fake_engine.apply)
        made = await change(other, token_fairness=9)
        assert [answer.error is None for answer in deliver_late(fake_engine)] == [False, False]
        assert fake_engine.in_force == (3, made.config.as_dict())
        assert control.owes_engine
        assert await control.reconcile(3) is False
        assert not control.owes_engine

    run(story())
    assert fake_engine.in_force[0] == 3


def test_an_engine_started_with_a_later_version_keeps_it(control, fake_engine, started_store, no_flags):
    """It dies while version 2 waits; its successor starts with what the command line made version 3."""

    async def story():
        flags = type(no_flags)(data_dir="/nowhere", database="", threads=1, scheduler_policy="throughput")

        async def restart(version):
            if version == 2:
                made = await asyncio.to_thread(resolve_initial_policy, started_store, flags)
                fake_engine.restart(made.version, made.config)

        fake_engine.before = restart
        with pytest.raises(PolicyRejected, match="already uses policy version 3"):
            await change(control)

    run(story())
    assert fake_engine.in_force == (3, PolicyConfig.throughput().as_dict())
    assert states(started_store) == ["applied", "refused", "applied"]
