"""A change that fails leaves engine and store with the policy that was in force, whichever part failed."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from service.control.errors import ChangeInProgress, ChangeRefused, EngineDidNotAnswer
from service.control.policy import PolicyControl, resolve_initial_policy
from service.control.versions import lock_versions
from service.ipc.errors import EngineUnavailable, PolicyRejected
from service.store.database import read_transaction, write_transaction
from service.store.errors import StoreUnavailable
from service.store.tables import policy_attempts, policy_versions


def run(coroutine):
    return asyncio.run(coroutine)


def change(control, version=1, **coefficients):
    return control.change(expected_version=version, coefficients=coefficients or {"token_fairness": 8}, actor="anna")


def states(store):
    with read_transaction(store) as connection:
        query = sa.select(policy_versions.c.state).order_by(policy_versions.c.version)
        return list(connection.scalars(query))


def outcomes(store):
    with read_transaction(store) as connection:
        query = sa.select(policy_attempts.c.outcome).order_by(policy_attempts.c.id)
        return list(connection.scalars(query))


@contextlib.contextmanager
def broken_statements(store, word, times):
    """The next `times` statements that hold `word` fail as if the database had gone away."""
    left = [times]

    def fail(connection, _cursor, text, _values, _context, _many):
        if word in text and left[0]:
            left[0] -= 1
            raise sa.exc.OperationalError(text, {}, Exception("the server closed the connection"))

    event.listen(store, "before_cursor_execute", fail)
    try:
        yield left
    finally:
        event.remove(store, "before_cursor_execute", fail)


def test_coefficients_that_the_engine_rejects_are_refused(control, fake_engine, started_store):
    async def story():
        fake_engine.failures = [PolicyRejected("no such memory")]
        with pytest.raises(PolicyRejected):
            await change(control)
        assert (await control.current()).version == 1

    run(story())
    assert states(started_store) == ["applied", "refused"]
    assert outcomes(started_store) == ["refused"]
    assert fake_engine.taken == []


def test_without_an_engine_the_change_is_refused_and_the_next_one_has_a_new_number(control, fake_engine, started_store):
    async def story():
        fake_engine.failures = [EngineUnavailable("starting"), EngineUnavailable("starting")]
        with pytest.raises(EngineUnavailable):
            await change(control)
        return await change(control)

    assert run(story()).version == 3
    assert states(started_store) == ["applied", "refused", "applied"]
    assert fake_engine.taken == [3]


def test_an_engine_that_took_it_and_did_not_answer_gets_the_old_policy_back(control, fake_engine, started_store):
    async def story():
        fake_engine.hang = True
        with pytest.raises(EngineDidNotAnswer, match="unchanged"):
            await change(control)

    run(story())
    assert fake_engine.taken == [2, 1]
    assert fake_engine.in_force[1]["token_fairness"] == 16.0
    assert states(started_store) == ["applied", "refused"]


def test_a_lost_acknowledgement_counts_as_a_failure_and_is_taken_back(control, fake_engine, started_store):
    async def story():
        fake_engine.failures = [(EngineUnavailable("gone"), "taken")]
        with pytest.raises(EngineUnavailable):
            await change(control)

    run(story())
    assert fake_engine.taken == [2, 1]
    assert states(started_store) == ["applied", "refused"]


def test_with_the_store_unreachable_nothing_reaches_the_engine(control, fake_engine, started_store):
    async def story():
        with broken_statements(started_store, "INSERT INTO policy_versions", 1), pytest.raises(StoreUnavailable):
            await change(control)
        assert fake_engine.taken == []
        return await change(control)

    assert run(story()).version == 2
    assert states(started_store) == ["applied", "applied"]


def test_marking_it_applied_is_tried_again(control, fake_engine, started_store):
    async def story():
        with broken_statements(started_store, "UPDATE policy_versions", 4) as left:
            left[0] = 0
            task = asyncio.ensure_future(change(control))
            fake_engine.before = lambda _version: _set(left, 2)
            made = await task
            assert left == [0]
        return made

    assert run(story()).state == "applied"
    assert fake_engine.taken == [2]
    assert states(started_store) == ["applied", "applied"]


async def _set(left, number):
    left[0] = number


def test_when_it_cannot_be_marked_the_engine_gets_the_old_policy_back(control, fake_engine, started_store):
    """The store stays away: the pending row is refused as soon as it is back, and numbers are not reused."""

    async def story():
        with broken_statements(started_store, "UPDATE policy_versions", 0) as left:

            async def cut(version):
                left[0] = 1000 if version == 2 else left[0]

            fake_engine.before = cut
            with pytest.raises(StoreUnavailable, match=r"withdrawn.*version 1 is in force again"):
                await change(control)
            assert fake_engine.taken == [2, 1]
            assert states(started_store) == ["applied", "pending"]
        assert (await control.current()).version == 1
        assert states(started_store) == ["applied", "refused"]
        return await change(control)

    assert run(story()).version == 3
    assert states(started_store) == ["applied", "refused", "applied"]
    assert fake_engine.in_force[0] == 3


def test_a_commit_whose_answer_was_lost_is_noticed_by_the_next_try(control, started_store, monkeypatch):
    """The first try commits and then fails; the second finds the version applied."""
    commits = []

    def fail_after_commit(_connection):
        commits.append(True)
        if len(commits) == 2:  # the first commit wrote the pending row
            raise sa.exc.OperationalError("COMMIT", {}, Exception("connection lost"))

    async def story():
        original = started_store.dialect.do_commit

        def do_commit(connection):
            original(connection)
            fail_after_commit(connection)

        monkeypatch.setattr(started_store.dialect, "do_commit", do_commit)
        return await change(control)

    assert run(story()).state == "applied"
    assert states(started_store) == ["applied", "applied"]


def test_a_version_that_may_have_been_committed_but_was_withdrawn_does_not_win(
    control, fake_engine, started_store, monkeypatch
):
    """Every answer to the marking commit is lost: the row says applied, the engine has the old policy back."""

    async def story():
        original = started_store.dialect.do_commit
        lost = [0]

        def do_commit(connection):
            original(connection)
            if lost[0]:
                raise sa.exc.OperationalError("COMMIT", {}, Exception("connection lost"))

        monkeypatch.setattr(started_store.dialect, "do_commit", do_commit)

        async def cut(_version):
            lost[0] = 1

        fake_engine.before = cut
        with pytest.raises(StoreUnavailable):
            await change(control)
        assert fake_engine.in_force[0] == 1
        lost[0] = 0
        assert (await control.current()).version == 1

    run(story())
    assert states(started_store) == ["applied", "refused"]


def test_a_start_during_a_change_withdraws_it(control, fake_engine, started_store, no_flags):
    """The engine dies right after it acknowledged; the supervisor's start refuses the pending version first."""

    async def story():
        async def restart(_version):
            await asyncio.to_thread(resolve_initial_policy, started_store, no_flags)

        fake_engine.before = restart
        with pytest.raises(ChangeRefused, match="restart"):
            await change(control)
        assert (await control.current()).version == 1

    run(story())
    assert states(started_store) == ["applied", "refused"]
    assert outcomes(started_store) == ["refused"]


def test_a_caller_that_goes_away_does_not_leave_half_a_change(control, fake_engine, started_store):
    async def story():
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def pause(_version):
            reached.set()
            await go_on.wait()

        fake_engine.before = pause
        slow = PolicyControl(started_store, fake_engine.apply)
        task = asyncio.create_task(change(slow))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await slow.close()
        return await slow.current()

    assert run(story()).version == 2
    assert states(started_store) == ["applied", "applied"]
    assert fake_engine.taken == [2]


def test_an_engine_with_another_version_is_given_the_one_in_force(control, fake_engine, started_store):
    async def story():
        await change(control)
        assert await control.reconcile(2) is False
        fake_engine.restart()
        assert await control.reconcile(1) is True
        assert await control.reconcile(1) is True

    run(story())
    assert fake_engine.received == [(2, None), (2, None)]
    assert fake_engine.taken == [2]


def test_an_engine_is_not_given_another_version_while_a_change_of_another_process_is_under_way(
    control, fake_engine, started_store
):
    async def story():
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def pause(_version):
            reached.set()
            await go_on.wait()

        fake_engine.before = pause
        other = PolicyControl(started_store, fake_engine.apply)
        task = asyncio.create_task(change(other))
        await reached.wait()
        for reported in (1, 7):
            with pytest.raises(ChangeInProgress):
                await control.reconcile(reported)
        go_on.set()
        await task

    run(story())
    assert fake_engine.taken == [2]


def test_the_event_loop_runs_on_while_the_store_is_busy(control, started_store):
    async def story():
        with write_transaction(started_store) as holder:
            lock_versions(holder)
            task = asyncio.create_task(change(control))
            for _ in range(200):
                await asyncio.sleep(0)
            assert not task.done()
        return await task

    assert run(story()).version == 2
