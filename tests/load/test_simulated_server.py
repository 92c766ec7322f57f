"""A simulated engine and its recorder under load: what was received, what is in SQL, and what tracing off leaves."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3

import pytest
from waiting import wait_until

from service.journal.segments import segment_numbers
from service.load.errors import EngineDidNotStart
from service.load.server import Options, cpu_ns, simulated_server
from service.load.submitter import Load, Submitter
from service.load.trace_cost import wait_started

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
START_S = 240.0


@contextlib.contextmanager
def loaded(folder, **changes):
    options = Options(plans_per_s=400.0, lanes=4, **changes)
    with simulated_server(folder, options) as server, Submitter(server.endpoint, Load(4, 16, 50)) as submitter:
        submitter.wait_ready(seconds=START_S)
        yield server, submitter


def committed(folder: pathlib.Path) -> dict[str, int]:
    """Tokens of each request in SQL."""
    query = "SELECT request_id, SUM(committed_tokens) FROM plan_lanes GROUP BY request_id"
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'helios.db'}?mode=ro", uri=True)) as connection:
        return dict(connection.execute(query).fetchall())


def test_what_was_received_is_in_sql(tmp_path):
    with loaded(tmp_path) as (server, submitter):
        submitter.begin()
        submitter.wait_tokens(500)
        submitter.pause()
        received = {name: found.tokens for name, found in submitter.received().items()}
        assert {found.ended for found in submitter.received().values()} == {"length"}
        assert set(received.values()) == {50}
        assert sum(received.values()) == submitter.tokens >= 500
        wait_until(lambda: committed(tmp_path) == received, "the tokens in SQL")
        wait_until(server.caught_up, "the recorder to have nothing left")
        server.recorder.kill()
        server.recorder.wait()
        server.start_recorder()
        assert not server.caught_up()
        wait_until(server.caught_up, "the next recorder to be there", START_S)
        assert server.plans() > 500 / 4
        assert sum(cpu_ns(server.engine.pid)) > 0
        assert server.metric("flare_output_tokens_total") == submitter.tokens


def test_without_tracing_tokens_come_and_nothing_is_written_down(tmp_path):
    with loaded(tmp_path, tracing=False, recorder=False) as (server, submitter):
        submitter.begin()
        submitter.wait_tokens(500)
        submitter.pause(cancel=True)
        assert server.plans() > 500 / 4
        assert server.metric("flare_journal_bytes") == 0
    assert segment_numbers(server.settings.journal_dir) == []
    assert committed(tmp_path) == {}


def test_an_engine_that_cannot_start_is_said_with_its_last_line(tmp_path):
    with simulated_server(tmp_path, Options(recorder=False, lanes=4)) as server:
        server.engine.kill()
        server.engine.wait()
        (server.settings.run_dir / "engine.log").write_text("one\nthe engine cannot start: no room\n")
        with Submitter(server.endpoint, Load(4)) as submitter, pytest.raises(EngineDidNotStart, match="no room"):
            wait_started(server, submitter)
