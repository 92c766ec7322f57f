"""Signals and kills, on a tiny model so that every case gets a fresh server."""

from __future__ import annotations

import json
import os
import signal

import httpx
import openai
import pytest
from waiting import wait_until

from service.journal.commands import dump
from tests.e2e.endless_model import MODEL_OPTIONS, long_stream, open_raw_stream, quiet, take
from tests.e2e.helios_server import HeliosServer, alive, children_of, process_state, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def helios(tmp_path, tiny_checkpoint):
    with serving(tmp_path / "data", *MODEL_OPTIONS, str(tiny_checkpoint)) as server:
        yield server


def events_of(lines):
    """The JSON events of a stream's lines."""
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]


def texts(events):
    return [e for e in events if e.get("choices") and e["choices"][0]["text"]]


def test_sigterm_ends_open_streams_flushes_everything_and_exits_0_in_time(helios):
    """Exit code 0 is in time: a supervisor that has not ended by its deadline, under five seconds, exits with 70."""
    with httpx.Client() as client, open_raw_stream(helios, client) as response:
        lines = response.iter_lines()
        received = [next(lines) for _ in range(8)]
        wait_until(lambda: helios.rows("SELECT * FROM engine_runs"), "the recorder to have begun")
        helios.process.send_signal(signal.SIGTERM)
        received += list(lines)
        code = helios.process.wait(60)
    assert code == 0, helios.log()
    events = events_of(received)
    assert events[-1]["error"]["code"] == "shutting_down"
    run = helios.rows("SELECT * FROM engine_runs")[0]
    assert (run["end_reason"], run["ended_at"] is not None) == ("stopped", True)
    assert helios.rows("SELECT COUNT(*) AS n FROM plans WHERE outcome NOT IN ('completed', 'abandoned')")[0]["n"] == 0
    row = helios.rows("SELECT * FROM requests")[0]
    assert row["finish_reason"] == "abort"
    assert row["output_tokens"] >= len(texts(events))


def plans_in_flight(helios):
    """Fences of the plans that the journal's newest run has committed and not completed: two at the most, in order."""
    records = list(dump(helios.data_dir / "journal"))
    committed = {r["fence"] for r in records if r.get("record") == "PlanCommitted"}
    completed = {r["fence"] for r in records if r.get("record") == "PlanCompleted"}
    return sorted(committed - completed)


def go_on(helios, engine):
    """Lets the stopped engine run until it has made another token."""
    served = helios.metric("flare_output_tokens_total")
    os.kill(engine, signal.SIGCONT)
    wait_until(lambda: helios.metric("flare_output_tokens_total") > served, "the engine to go on")


def stop_in_a_graph(helios, engine):
    """Stops the engine (SIGSTOP) while a graph of its runs; the fences of that plan and of the one queued behind it."""
    for _ in range(50):
        os.kill(engine, signal.SIGSTOP)
        wait_until(lambda: process_state(engine) == "T", "the engine to stop")
        fences = plans_in_flight(helios)
        if fences:
            return fences
        go_on(helios, engine)
    raise AssertionError("stopped 50 times, never in a graph")


def lost_run(helios):
    """The run of the killed engine, once its successor's run is stored too."""
    runs = wait_until(
        lambda: (r := helios.rows("SELECT * FROM engine_runs ORDER BY started_at")) and len(r) == 2 and r, "two runs"
    )
    assert [run["end_reason"] for run in runs] == ["lost", None]
    return runs[0]["run_id"]


def replaced(helios, module, old):
    wait_until(lambda: children_of(helios.process.pid).get(module, old) != old, f"a new {module}", 60)


def test_a_killed_engine_ends_streams_loses_nothing_seen_and_is_replaced(helios):
    engine = helios.child("service.engine")
    with httpx.Client() as client, open_raw_stream(helios, client) as response:
        lines = response.iter_lines()
        received = [next(lines) for _ in range(8)]
        fences = stop_in_a_graph(helios, engine)
        os.kill(engine, signal.SIGKILL)
        received += list(lines)
    events = events_of(received)
    assert "error" in events[-1]
    replaced(helios, "service.engine", engine)
    wait_until(helios.ready, "the new engine to serve", 60)
    assert take(long_stream(helios, 5), 1)
    old = lost_run(helios)
    outcomes = "SELECT fence, outcome FROM plans WHERE run_id = :r AND outcome != 'completed' ORDER BY fence"
    assert helios.rows(outcomes, r=old) == [{"fence": fence, "outcome": "lost"} for fence in fences]
    row = helios.rows("SELECT * FROM requests WHERE run_id = :r", r=old)[0]
    assert row["finish_reason"] == "error"
    lanes = "SELECT SUM(committed_tokens) AS n FROM plan_lanes WHERE run_id = :r"
    assert helios.rows(lanes, r=old)[0]["n"] >= len(texts(events))


def test_engine_and_service_killed_at_once_are_replaced_and_hold_nothing(helios):
    engine, service = helios.child("service.engine"), helios.child("service.app")
    stream = long_stream(helios)
    take(stream, 3)
    os.kill(engine, signal.SIGKILL)
    os.kill(service, signal.SIGKILL)
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        for _ in stream:
            pass
    replaced(helios, "service.engine", engine)
    replaced(helios, "service.app", service)
    wait_until(helios.ready, "both to serve again", 60)
    assert list(long_stream(helios, 5))
    wait_until(lambda: quiet(helios), "the new request to end and every page to be free")
    old = lost_run(helios)
    assert helios.rows("SELECT finish_reason FROM requests WHERE run_id = :r", r=old) == [{"finish_reason": "error"}]
    assert not helios.rows("SELECT * FROM plans WHERE outcome = 'in_flight' AND run_id = :r", r=old)


def test_a_killed_supervisor_leaves_no_orphan(helios):
    children = [helios.child(m) for m in ("service.engine", "service.recorder", "service.app")]
    helios.process.kill()
    helios.process.wait(10)
    wait_until(lambda: not any(map(alive, children)), "the children to end", 60)


def test_a_killed_recorder_is_replaced_and_misses_nothing(helios):
    recorder = helios.child("service.recorder")
    stream = long_stream(helios, 60)
    request_id = take(stream, 3)[0].id
    os.kill(recorder, signal.SIGKILL)
    for _ in stream:
        pass
    replaced(helios, "service.recorder", recorder)
    row = wait_until(
        lambda: helios.rows("SELECT * FROM requests WHERE request_id = :id AND finished_at IS NOT NULL", id=request_id),
        "the request's end in SQL",
    )[0]
    lanes = "SELECT SUM(committed_tokens) AS n, COUNT(*) AS lanes, COUNT(DISTINCT fence) AS fences FROM plan_lanes"
    counted = helios.rows(lanes)[0]
    assert counted["n"] == row["output_tokens"]
    assert counted["lanes"] == counted["fences"]


def test_a_killed_service_is_replaced_and_its_streams_stop_costing(helios):
    service = helios.child("service.app")
    stream = long_stream(helios)
    take(stream, 3)
    os.kill(service, signal.SIGKILL)
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        for _ in stream:
            pass
    replaced(helios, "service.app", service)
    wait_until(helios.ready, "the new service", 60)
    wait_until(lambda: quiet(helios), "the orphaned request to end and free its pages", 30)


def test_a_restart_keeps_the_policy_and_adds_to_the_same_trace(tmp_path, tiny_checkpoint):
    arguments = (*MODEL_OPTIONS, str(tiny_checkpoint))
    with serving(tmp_path / "data", *arguments) as helios:
        etag = httpx.get(f"{helios.base}/api/policy").headers["etag"]
        body = {"coefficients": {"decode_age_price": 0.25}, "actor": "e2e"}
        assert httpx.put(f"{helios.base}/api/policy", headers={"If-Match": etag}, json=body).status_code == 200
        take(long_stream(helios, 5), 1)
        assert helios.stop() == 0
        assert children_of(helios.process.pid) == {}
    with serving(tmp_path / "data", *arguments) as helios:
        current = httpx.get(f"{helios.base}/api/policy").json()
        assert (current["version"], current["coefficients"]["decode_age_price"]) == (2, 0.25)
        assert helios.stop() == 0
        assert len(helios.rows("SELECT * FROM engine_runs")) == 2


def test_the_server_is_ended_by_ctrl_c_too(tmp_path, tiny_checkpoint):
    server = HeliosServer(tmp_path / "data", *MODEL_OPTIONS, str(tiny_checkpoint))
    try:
        server.wait_ready()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0
    finally:
        server.end()
