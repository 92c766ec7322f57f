"""Views read in few threads of their own, for a limited time, and stop when their caller leaves (C33)."""

from __future__ import annotations

import asyncio
import threading

import pytest
import sqlalchemy as sa
from factories import fill_store

from dashboard.reads import Reads
from service.store.engines import read_transaction
from service.store.errors import DatabaseOlder, ReadTooLong, TooManyReads
from service.store.queries import list_plans
from service.store.read_limits import ReadLimit, limited
from service.store.tables import plans

ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT count(*) FROM generate_series(1, 1000000000000)",
}


class Endless:
    """A query that does not end, and says when it has begun and when its thread is done with it."""

    def __init__(self):
        self.begun, self.ended = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, engine):
        try:
            with read_transaction(engine) as connection:
                connection.execute(sa.select(sa.literal(1)))
                self.begun.release()
                connection.exec_driver_sql(ENDLESS[engine.dialect.name])
        finally:
            self.ended.release()


def count(engine):
    with read_transaction(engine) as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(plans)).scalar_one()


async def begun(query, times=1):
    for _ in range(times):
        assert await asyncio.to_thread(query.begun.acquire, timeout=20)


def test_a_view_that_reads_for_too_long_is_stopped_in_the_database(any_store):
    fill_store(any_store, plans=5)
    query = Endless()

    async def run():
        reads = Reads(limit_s=0.2)
        with pytest.raises(ReadTooLong, match=r"0\.2 s"):
            await reads.run(any_store, query)
        return await reads.run(any_store, count)

    assert asyncio.run(run()) == 5
    assert query.ended.acquire(timeout=0)
    assert any_store.pool.checkedout() == 0


def test_the_next_statement_of_a_view_without_time_does_not_begin(store):
    limit = ReadLimit(60)
    with read_transaction(limited(store, limit)) as connection:
        connection.execute(sa.select(sa.literal(1)))
        limit.cancel()
        with pytest.raises(ReadTooLong):
            connection.execute(sa.select(sa.literal(1)))
    with pytest.raises(ReadTooLong), read_transaction(limited(store, limit)):
        pass
    assert count(store) == 0, "the engine itself has no limit"


def test_a_limited_engine_reads_as_the_engine_does(any_store):
    fill_store(any_store, plans=20)
    under = limited(any_store, ReadLimit(60))
    assert list_plans(under, limit=7) == list_plans(any_store, limit=7)


def test_mistakes_and_faults_keep_their_errors(store):
    under = limited(store, ReadLimit(60))
    with pytest.raises(DatabaseOlder, match="nowhere"), read_transaction(under) as connection:
        connection.exec_driver_sql("SELECT * FROM nowhere")


def test_callers_that_leave_stop_their_queries_and_leak_no_connection(any_store):
    """C33: 200 queries are cancelled, four at a time while they run and the others while they wait."""
    query = Endless()

    async def run():
        reads = Reads(threads=4, waiting=50, patience_s=60, limit_s=600)
        for _ in range(4):
            tasks = [asyncio.create_task(reads.run(any_store, query)) for _ in range(50)]
            await begun(query, 4)
            for task in tasks:
                task.cancel()
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(end) for end in ends} == {asyncio.CancelledError}
        return await reads.run(any_store, count)

    assert asyncio.run(run()) == 0
    assert any_store.pool.checkedout() == 0


def test_a_caller_that_is_cancelled_twice_still_waits_for_its_connection(store):
    query = Endless()

    async def run():
        reads = Reads(threads=1, limit_s=600)
        task = asyncio.create_task(reads.run(store, query))
        await begun(query)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert query.ended.acquire(timeout=0)
        assert store.pool.checkedout() == 0

    asyncio.run(run())


def test_who_finds_no_place_is_told_so_at_once_and_who_waits_for_long_in_a_while(store):
    query = Endless()

    async def run():
        reads = Reads(threads=2, waiting=3, patience_s=0.05, limit_s=600)
        slow = [asyncio.create_task(reads.run(store, query)) for _ in range(2)]
        await begun(query, 2)
        waiting = [asyncio.create_task(reads.run(store, count)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyReads, match="busy") as refused:
            await reads.run(store, count)
        assert refused.value.retry_after_s >= 1
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(end) for end in ends} == {TooManyReads}
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return await asyncio.gather(*(reads.run(store, count) for _ in range(4)))

    assert asyncio.run(run()) == [0, 0, 0, 0]
