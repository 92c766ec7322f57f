"""`helios serve --workers 2`: both give the same answers, and one that dies or hangs costs its own clients only.

A worker that is stopped by a signal accepts nothing, so that the other one answers every new connection.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from waiting import wait_until

from service.load.server import byte_model
from tests.e2e.helios_server import process_state, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CATALOG = "kind,B,D,W,P,prefill_capacity,duration_ms\nprefill,1,0,0,64,64,3\ndecode,1,0,1,1,0,2\ndecode,8,0,1,8,0,3\n"
HTTP = "http_server_request_duration_seconds_count"
ANSWERED = {"http_route": "/v1/completions", "http_request_method": "POST", "http_response_status_code": "200"}
ANSWERED_200 = (HTTP, frozenset(ANSWERED.items()))
TOKENS = ("flare_output_tokens_total", frozenset())


@pytest.fixture(scope="module")
def helios(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    (folder / "catalog.csv").write_text(CATALOG)
    options = ("--workers", "2", "--device", "simulated", "--catalog", str(folder / "catalog.csv"))
    with serving(folder / "data", "--model", byte_model(), *options) as server:
        wait_until(lambda: len(workers(server)) == 2, "two workers")
        for other in workers(server):  # each of them has to answer before a test stops the other one
            with only_others_than(other):
                wait_until(server.ready, "the worker to be ready")
        yield server


def workers(helios):
    """Process ids of the service's workers, oldest first."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit() or b"service.app" not in (entry / "cmdline").read_bytes().split(b"\0"):
                continue
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == helios.process.pid:
                found.append(int(entry.name))
    return sorted(found)


@contextlib.contextmanager
def only_others_than(pid):
    """While this worker stands still, the rest answer."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: process_state(pid) == "T", "the worker to stand still")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def answers_of_each(helios, ask):
    """What `ask(client)` gives on a new connection to each worker."""
    found = []
    for other in reversed(workers(helios)):
        with only_others_than(other), httpx.Client(base_url=helios.base, timeout=60) as client:
            found.append(ask(client))
    return found


def complete(client, tokens=8):
    body = {"model": "byte-model", "prompt": "Say this.", "max_tokens": tokens}
    return client.post("/v1/completions", json=body).raise_for_status().json()


def samples(client):
    """Each sample of /metrics by its name and labels."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_both_workers_serve_and_show_the_same_trace_policy_pages_and_metrics(helios):
    used = [answer["usage"]["completion_tokens"] for answer in answers_of_each(helios, complete)]
    assert used == [8, 8]
    settled = "SELECT COUNT(*) AS n FROM requests WHERE finished_at IS NOT NULL"
    wait_until(lambda: helios.rows(settled)[0]["n"] == 2, "both requests in the store")
    wait_until(lambda: not helios.rows("SELECT fence FROM plans WHERE outcome = 'in_flight'"), "all plans to end")
    for path in ("/api/plans", "/api/requests", "/api/runs", "/api/policy", "/api/policy/history", "/v1/models"):
        first, second = answers_of_each(helios, lambda client, path=path: client.get(path).raise_for_status().json())
        assert second == first, path
    for path in ("/dashboard/_dash-layout", "/dashboard/_dash-dependencies"):
        first, second = answers_of_each(helios, lambda client, path=path: client.get(path).raise_for_status().content)
        assert second == first, path
    samples(helios.http)  # so that a scrape has been counted before
    first, second = answers_of_each(helios, samples)
    assert first[ANSWERED_200] == second[ANSWERED_200] == 2
    assert first[TOKENS] == second[TOKENS] == 16
    assert first.keys() == second.keys()


def test_a_policy_changed_at_one_worker_is_in_force_at_the_other(helios):
    def change(client):
        now = client.get("/api/policy")
        wanted = {"coefficients": {"token_fairness": now.json()["coefficients"]["token_fairness"] + 1}}
        changed = client.put("/api/policy", json=wanted, headers={"If-Match": now.headers["etag"]})
        return changed.raise_for_status().json()["version"]

    made = answers_of_each(helios, change)
    assert made == [made[0], made[0] + 1]
    assert answers_of_each(helios, lambda client: client.get("/api/policy").json()["version"]) == [made[1]] * 2


def test_a_worker_that_is_killed_takes_its_own_connections_only_and_its_counts_stay(helios):
    before = samples(helios.http)[ANSWERED_200]
    first, second = workers(helios)
    with contextlib.ExitStack() as held, httpx.Client(base_url=helios.base, timeout=60) as client:
        with only_others_than(first):
            body = {"model": "byte-model", "prompt": "x", "max_tokens": 400, "stream": True}
            stream = held.enter_context(client.stream("POST", "/v1/completions", json=body))
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
        os.kill(first, signal.SIGKILL)
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    wait_until(lambda: len(workers(helios)) == 2 and first not in workers(helios), "another worker")
    with only_others_than(second):
        wait_until(helios.ready, "the new worker to answer")
    assert [each[ANSWERED_200] for each in answers_of_each(helios, samples)] == [before + 1] * 2


def test_a_stop_ends_all_workers_and_refuses_connections(helios):
    assert helios.stop() == 0
    assert workers(helios) == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{helios.base}/health/live")
