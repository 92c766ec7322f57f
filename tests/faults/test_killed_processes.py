"""Engine, service and supervisor are killed in every order, under load: nothing that a client saw is missing."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from waiting import wait_until

from service.load.submitter import LOST
from tests.e2e.helios_server import alive
from tests.faults.bed import LONG_S, again, assert_whole, bed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

CHILDREN = ("service.engine", "service.app", "service.recorder")


# What is killed after the supervisor has ended with it already: no order goes on behind it.
ORDERS = [
    ("supervisor",),
    ("service.engine", "service.app", "supervisor"),
    ("service.app", "service.engine", "supervisor"),
]


@pytest.mark.parametrize("order", ORDERS)
def test_processes_killed_in_any_order_lose_nothing_that_was_received(tmp_path, order):
    with bed(tmp_path / "data") as former:
        first = former.submitter.run_id
        pids = {name: former.child(name) for name in CHILDREN} | {"supervisor": former.process.pid}
        for name in order:
            before = former.submitter.tokens
            with contextlib.suppress(ProcessLookupError):  # a child ends with its supervisor
                os.kill(pids[name], signal.SIGKILL)
            if name == "service.app":
                wait_until(lambda n=before: former.submitter.tokens > n or former.submitter.run_id is None, "tokens")
        former.process.wait(LONG_S)
        wait_until(lambda: not any(alive(pid) for pid in pids.values()), "the children to end", LONG_S)
        with again(former) as server:
            assert server.submitter.wait_ready(other_than=first, seconds=LONG_S) != first
            server.serves_on()
            received = server.settle()
            ends = {found.ended for found in received.values() if found.run_id == first}
            assert ends <= {"length", "abort", "stopping", LOST}
            assert_whole(server.settings.database, received)
            reasons = {row["run_id"]: row["end_reason"] for row in server.sql("SELECT * FROM engine_runs")}
            assert reasons[first] in ("lost", "stopped")


def test_an_engine_and_its_recorder_killed_at_once_are_replaced_and_lose_nothing(tmp_path):
    with bed(tmp_path / "data") as server:
        first = server.submitter.run_id
        recorder = server.child("service.recorder")
        server.kill("service.engine")
        os.kill(recorder, signal.SIGKILL)
        server.submitter.wait_ready(other_than=first, seconds=LONG_S)
        server.replaced("service.recorder", recorder)
        server.serves_on()
        received = server.settle()
        assert LOST in {found.ended for found in received.values()}
        assert_whole(server.settings.database, received)
        lost = server.sql("SELECT COUNT(*) AS n FROM plans WHERE outcome = 'lost' AND run_id = :r", r=first)[0]["n"]
        assert lost <= 2
