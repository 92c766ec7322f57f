"""A decision re-executed in a process beside the server: the same verdict, limits, and nothing left behind."""

from __future__ import annotations

import asyncio
import sys

import pytest
import sqlalchemy as sa

from service.store.engines import write_transaction
from service.store.tables import plans
from service.why.child import verdict_of
from service.why.verdicts import ReExecution, Task, Verdict
from tests.why.recording import RUN, stored, tee

READS_ITS_TASK = "import sys; sys.stdin.read(); "


@pytest.fixture
def recorded(make_rig, tmp_path):
    """A store of a small run; its address."""
    rig = make_rig()
    journal = tee(rig, tmp_path / "journal")
    for number in range(3):
        rig.submit(f"r{number}", prompt=20 + number, output=12, first=20 + number)
        rig.step(3)
    rig.settle(20_000)
    url = f"sqlite:///{tmp_path}/helios.db"
    engine = stored(journal, url)
    yield url, engine
    engine.dispose()


def a_fence(engine: sa.Engine) -> int:
    query = sa.select(plans.c.fence).where(plans.c.outcome == "completed").order_by(plans.c.fence.desc()).limit(1)
    with engine.connect() as connection:
        return int(connection.execute(query).scalar_one())


def test_a_recorded_decision_comes_out_the_same_in_a_process_of_its_own(recorded) -> None:
    url, engine = recorded
    found = asyncio.run(ReExecution(300).verdict(url, RUN, a_fence(engine)))
    assert (found.result, found.why, found.differences) == ("same", None, ())
    assert found.plans >= 1
    assert found.ledgers_after is not None
    assert found.ledgers_after.keys() >= {"timing_credit_ms", "discovery_ms"}


def test_a_row_that_was_changed_is_a_difference_and_a_missing_plan_is_said(recorded) -> None:
    url, engine = recorded
    fence = a_fence(engine)
    assert verdict_of(Task(url, RUN, fence)).result == "same"
    with write_transaction(engine) as connection:
        connection.execute(plans.update().where(plans.c.fence == fence).values(value_rate=plans.c.value_rate + 1))
    found = verdict_of(Task(url, RUN, fence))
    assert found.result == "different"
    assert found.difference_count == len(found.differences) >= 1
    assert "no plan 999" in str(verdict_of(Task(url, RUN, 999)).why)
    assert verdict_of(Task("sqlite:////nowhere/helios.db", RUN, 1)).result == "unavailable"


class Scripted(ReExecution):
    """Runs `python -c` in place of the child."""

    def __init__(self, code: str, time_limit_s: float) -> None:
        super().__init__(time_limit_s, arguments=(sys.executable, "-c", READS_ITS_TASK + code))


def test_a_child_that_hangs_or_fails_is_told_and_gone() -> None:
    hangs = Scripted("import time; time.sleep(600)", 0.5)
    assert "took longer than" in str(asyncio.run(hangs.verdict("", "run", 1)).why)
    breaks = Scripted("sys.exit(1)", 60)
    assert asyncio.run(breaks.verdict("", "run", 1)) == Verdict("unavailable", "its process failed: DecodeError")


def test_one_decision_at_a_time_and_the_next_may_follow() -> None:
    async def three() -> list[Verdict]:
        again = Scripted("""print('{"result": "same", "plans": 1}')""", 60)
        both = await asyncio.gather(again.verdict("", "run", 1), again.verdict("", "run", 2))
        return [*both, await again.verdict("", "run", 3)]

    first, second, third = asyncio.run(three())
    assert first == third == Verdict("same", plans=1)
    assert (second.result, "another decision" in str(second.why)) == ("unavailable", True)


def test_whoever_leaves_takes_the_child_along() -> None:
    async def leave() -> int:
        again = Scripted("import time; time.sleep(600)", 600)
        task = asyncio.create_task(again.verdict("", "run", 1))
        while again.child is None:
            await asyncio.sleep(0)
        child = again.child
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return child.returncode

    assert asyncio.run(leave()) == -9
