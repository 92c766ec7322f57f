"""Whatever the interleaving: one number, one version; a stale save never wins; engine and store agree."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.control.errors import ChangeInProgress, StalePolicy
from service.control.policy import PolicyControl, resolve_initial_policy
from service.ipc.errors import EngineUnavailable
from service.store.database import read_transaction, write_transaction
from service.store.tables import policy_attempts, policy_versions


def empty(store):
    with write_transaction(store) as connection:
        connection.execute(policy_versions.delete())
        connection.execute(policy_attempts.delete())


def versions(store):
    with read_transaction(store) as connection:
        query = sa.select(policy_versions).order_by(policy_versions.c.version)
        return [dict(row) for row in connection.execute(query).mappings()]


def test_a_hundred_changes_at_once_give_one_winner_per_version(any_store, fake_engine, no_flags):
    resolve_initial_policy(any_store, no_flags)

    async def story():
        control = PolicyControl(any_store, fake_engine.apply)
        tasks = [
            control.change(expected_version=1, coefficients={"token_fairness": 100 + n}, actor=f"op{n}")
            for n in range(100)
        ]
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(story())
    assert sum(not isinstance(r, Exception) for r in results) == 1
    assert sum(isinstance(r, StalePolicy) for r in results) == 99
    assert fake_engine.taken == [2]
    assert [row["version"] for row in versions(any_store)] == [1, 2]


class Operator:
    """Changes the policy the way a person does: looks, thinks for a while, saves what it looked at."""

    def __init__(self, control, name, plan):
        self.control, self.name, self.plan = control, name, plan
        self.won = []

    async def work(self):
        for value, pauses in self.plan:
            seen = (await self.control.current()).version
            for _ in range(pauses):
                await asyncio.sleep(0)
            try:
                made = await self.control.change(
                    expected_version=seen, coefficients={"token_fairness": value}, actor=self.name
                )
            except (StalePolicy, ChangeInProgress, EngineUnavailable):
                continue
            if made.version != seen:
                self.won.append((seen, made.version, float(value)))


plans_of_operators = st.lists(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 12)), min_size=1, max_size=4), min_size=2, max_size=4
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plans=plans_of_operators,
    fates=st.dictionaries(st.integers(2, 8), st.sampled_from(["lost", "unanswered", "late"]), max_size=4),
    withdrawals=st.lists(st.sampled_from([None, "lost", "unanswered", "late"]), max_size=4),
    late_first=st.booleans(),
    pauses=st.lists(st.integers(0, 5)),
)
def test_random_interleavings_of_two_processes_never_lose_or_double_a_version(
    two_controls, no_flags, plans, fates, withdrawals, late_first, pauses
):
    """Versions and their withdrawals get lost, are taken without an answer, or reach the engine when all is over."""
    store, engine, make = two_controls
    empty(store)
    engine.restart()
    resolve_initial_policy(store, no_flags)
    waits = iter(pauses)

    async def before(_version):
        for _ in range(next(waits, 0)):
            await asyncio.sleep(0)

    withdrawal_fates = iter(withdrawals)

    def disturb(command):
        return fates.get(command.version) if command.withdraws is None else next(withdrawal_fates, None)

    engine.before, engine.disturb = before, disturb

    async def settle(controls):
        engine.disturb = lambda _command: None
        for control in controls:
            if control.owes_engine:
                await control.reconcile(engine.core.ready.policy_version)

    async def story():
        controls = [make(), make()]
        operators = [Operator(controls[n % 2], f"op{n}", plan) for n, plan in enumerate(plans)]
        await asyncio.gather(*(operator.work() for operator in operators))
        if not late_first:
            await settle(controls)
        for command in engine.late:
            engine.deliver(command)
        await settle(controls)
        return [win for operator in operators for win in operator.won], await controls[0].current()

    won, current = asyncio.run(story())
    rows = versions(store)
    assert [row["version"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["state"] for row in rows} <= {"applied", "refused"}
    applied = [row for row in rows if row["state"] == "applied"]
    assert sorted(made for _, made, _ in won) == [row["version"] for row in applied[1:]]
    # Every saved version builds on the one that was in force right before it: no stale save won.
    for before_it, row in itertools.pairwise(applied):
        assert row["parent_version"] == before_it["version"]
    for seen, made, value in won:
        row = rows[made - 1]
        assert (row["parent_version"], row["token_fairness"]) == (seen, value)
    assert current.version == applied[-1]["version"]
    assert engine.in_force == (current.version, current.config.as_dict())


@pytest.fixture
def two_controls(any_store, fake_engine):
    return any_store, fake_engine, lambda: PolicyControl(any_store, fake_engine.apply, mark_pause_s=0.0)
