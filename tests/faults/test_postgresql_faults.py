"""PostgreSQL is killed under load and comes back, in time for the journal's budget or long after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from needs import missing
from postgresql_server import NoServer, PrivateServer
from waiting import wait_until

from tests.faults.bed import LONG_S, assert_conserved, assert_gap_is_told, assert_whole, bed

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
        wait_until(lambda: server.warned("the trace store is unreachable"), "the reason", LONG_S)
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
        wait_until(lambda: server.warned("removed to keep --journal-budget"), "the warning", LONG_S)
        server.serves_on()
        assert server.submitter.run_id == run
        postgresql.start()
        received = server.settle()
        assert_gap_is_told(server, run)
        assert assert_conserved(server.settings.database, received)[run].fences
