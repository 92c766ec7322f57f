"""PostgreSQL is killed under load and comes back, in time for the journal's budget or long after it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa
from needs import missing
from postgresql_server import NoServer, PrivateServer
from waiting import wait_until

from tests.faults.bed import LONG_S, assert_conserved, assert_gap_is_told, assert_whole, bed, store_rows

pytestmark = [pytest.mark.e2e, pytest.mark.postgresql, pytest.mark.timeout(900)]

SEGMENT_BYTES = 64 << 10


@pytest.fixture
def postgresql() -> Iterator[PrivateServer]:
    """A server of the test's own, which it may kill."""
    try:
        with PrivateServer() as server:
            yield server
    except NoServer as error:
        missing(f"a private PostgreSQL needs its programs (Debian: apt-get install postgresql): {error}")


def address(postgresql: PrivateServer) -> str:
    return postgresql.url.render_as_string(hide_password=False)


def test_a_postgresql_that_is_killed_and_comes_back_has_every_plan_once(tmp_path, postgresql):
    with bed(tmp_path / "data", address(postgresql)) as server:
        server.serves_on()
        postgresql.kill()
        wait_until(lambda: server.warned("the trace store is unreachable"), "the warning", LONG_S)
        server.serves_on()
        wait_until(lambda: server.warned("behind: its records wait in the journal"), "the lag", LONG_S)
        postgresql.start()
        server.serves_on()
        assert_whole(server.settings.database, server.settle())
        assert server.ready()


def test_a_postgresql_that_is_gone_for_longer_than_the_journal_holds_costs_the_oldest_records(tmp_path, postgresql):
    """An hour at full speed, compressed into a budget that fills in seconds."""
    budget = {"journal_segment_bytes": SEGMENT_BYTES, "journal_budget": 8 * SEGMENT_BYTES}
    with bed(tmp_path / "data", address(postgresql), **budget) as server:
        run = server.submitter.run_id
        postgresql.kill()
        over = 'flare_journal_lost_records_total{cause="over_budget"}'
        wait_until(lambda: server.metric(over) > 0, "the budget to be over", LONG_S)
        wait_until(lambda: server.warned("--journal-budget does not hold"), "the warning", LONG_S)
        server.serves_on()
        assert server.submitter.run_id == run
        postgresql.start()
        received = server.settle()
        assert_gap_is_told(server, run)
        assert assert_conserved(server.settings.database, received)[run].fences


def held_tables(url: str) -> psycopg.Connection:
    """A session in whose transaction nobody else may write plan_lanes: a batch's COPY stops in the middle."""
    session = psycopg.connect(sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    session.execute("LOCK TABLE plan_lanes IN EXCLUSIVE MODE")
    return session


def copying(url: str) -> bool:
    """Whether the recorder's transaction waits within a batch."""
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'COPY%plan_lanes%'"
    return bool(store_rows(url, waiting))


def test_a_postgresql_that_is_killed_in_the_middle_of_a_copy_has_every_plan_once(tmp_path, postgresql):
    """Three times; a part of the batch is written by then, and none of it stays."""
    url = address(postgresql)
    with bed(tmp_path / "data", url) as server:
        run = server.submitter.run_id
        for _ in range(3):
            session = held_tables(url)
            wait_until(lambda: copying(url), "the recorder to be in a COPY", LONG_S)
            postgresql.kill()
            session.close()
            server.serves_on()
            postgresql.start()
        assert server.submitter.run_id == run
        assert_whole(server.settings.database, server.settle())


def test_an_engine_that_dies_while_postgresql_is_away_is_replaced_with_its_policy_and_loses_nothing(
    tmp_path, postgresql
):
    with bed(tmp_path / "data", address(postgresql)) as server:
        first = server.submitter.run_id
        answer = server.http.put(
            "/api/policy", json={"coefficients": {"token_fairness": 20}}, headers={"If-Match": '"1"'}
        )
        assert answer.json()["version"] == 2, answer.text
        metric = "flare_scheduler_policy_version"
        wait_until(lambda: server.metric(metric) == 2, "the engine to use the policy", LONG_S)
        server.serves_on()
        postgresql.kill()
        wait_until(lambda: server.warned("the trace store is unreachable"), "the warning", LONG_S)
        server.kill("service.engine")
        assert server.submitter.wait_ready(other_than=first, seconds=LONG_S) != first
        assert "the engine starts with version 2, which was in force before" in server.log()
        wait_until(lambda: server.warned("the engine goes on with version 2"), "the warning", LONG_S)
        server.serves_on()
        body = {"model": server.http.get("/v1/models").json()["data"][0]["id"], "prompt": "Hi", "max_tokens": 3}
        assert server.http.post("/v1/completions", json=body).status_code == 200
        assert server.ready()
        postgresql.start()
        wait_until(lambda: not server.warned("the engine goes on"), "the policy to be confirmed", LONG_S)
        assert server.metric(metric) == 2
        received = server.settle()
        assert {found.run_id for found in received.values()} >= {first, server.submitter.run_id}
        assert_whole(server.settings.database, received)
