"""Disconnects, signals and kills, on a tiny model so that every case gets a fresh server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import httpx
import openai
import pytest

from tests.e2e.helios_server import HeliosServer, alive, children_of, free_port, serving, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


MODEL_OPTIONS = ("--threads", "1", "--max-context", "8192", "--kv-pages", "2048", "--model")


@pytest.fixture
def helios(tmp_path, tiny_checkpoint):
    with serving(tmp_path / "data", *MODEL_OPTIONS, str(tiny_checkpoint)) as server:
        yield server


def long_stream(helios, max_tokens=8000):
    model = helios.client().models.list().data[0].id
    return helios.client().completions.create(
        model=model, prompt="once upon a time", max_tokens=max_tokens, stream=True, temperature=1.0, seed=1
    )


def take(stream, count):
    return [next(iter(stream)) for _ in range(count)]


def quiet(helios):
    return helios.metric("flare_requests_running") == 0 and helios.metric("flare_requests_waiting") == 0


def test_a_client_that_disconnects_stops_costing(helios):
    total = helios.metric("flare_kv_pages_total")
    stream = long_stream(helios)
    request_id = take(stream, 3)[0].id
    stream.close()
    wait_until(lambda: quiet(helios), "the request to end")
    assert helios.metric("flare_kv_pages_used") == 0
    assert helios.metric("flare_kv_pages_total") == total
    row = wait_until(
        lambda: helios.rows(
            "SELECT * FROM requests WHERE request_id = :id AND finish_reason IS NOT NULL", id=request_id
        ),
        "the request's end in SQL",
    )[0]
    assert row["finish_reason"] == "abort"
    assert 3 <= row["output_tokens"] < 8000
    lanes = "SELECT SUM(committed_tokens) AS n FROM plan_lanes WHERE request_id = :id"
    assert helios.rows(lanes, id=request_id)[0]["n"] == row["output_tokens"]
    assert helios.metric('flare_requests_total{outcome="abort"}') == 1


def read_events(response):
    return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]


def open_raw_stream(helios, client):
    model = helios.client().models.list().data[0].id
    body = {"model": model, "prompt": "once upon a time", "max_tokens": 8000, "stream": True}
    return client.stream("POST", f"{helios.base}/v1/completions", json=body, timeout=60)


def test_sigterm_ends_open_streams_flushes_everything_and_exits_0_in_time(helios):
    with httpx.Client() as client, open_raw_stream(helios, client) as response:
        lines = response.iter_lines()
        received = [next(lines) for _ in range(8)]
        started = time.monotonic()
        helios.process.send_signal(signal.SIGTERM)
        received += list(lines)
        code = helios.process.wait(10)
        took = time.monotonic() - started
    events = [json.loads(line[6:]) for line in received if line.startswith("data: ") and line != "data: [DONE]"]
    assert events[-1]["error"]["code"] == "shutting_down"
    assert code == 0, helios.log()
    assert took < 5.0
    texts = [e for e in events if e.get("choices") and e["choices"][0]["text"]]
    run = helios.rows("SELECT * FROM engine_runs")[0]
    assert (run["end_reason"], run["ended_at"] is not None) == ("stopped", True)
    assert helios.rows("SELECT COUNT(*) AS n FROM plans WHERE outcome NOT IN ('completed', 'abandoned')")[0]["n"] == 0
    row = helios.rows("SELECT * FROM requests")[0]
    assert row["finish_reason"] == "abort"
    assert row["output_tokens"] >= len(texts)


def test_a_killed_engine_ends_streams_loses_nothing_seen_and_is_replaced(helios):
    first_engine = helios.child("service.engine")
    with httpx.Client() as client, open_raw_stream(helios, client) as response:
        lines = response.iter_lines()
        received = [next(lines) for _ in range(8)]
        started = time.monotonic()
        os.kill(first_engine, signal.SIGKILL)
        received += list(lines)
        took = time.monotonic() - started
    assert took < 2.0
    events = [json.loads(line[6:]) for line in received if line.startswith("data: ") and line != "data: [DONE]"]
    assert "error" in events[-1]
    seen = sum(1 for e in events if e.get("choices") and e["choices"][0]["text"])
    wait_until(lambda: helios.child("service.engine") != first_engine, "a new engine")
    wait_until(helios.ready, "the new engine to serve", 60)
    assert take(long_stream(helios, 5), 1)
    runs = wait_until(
        lambda: (r := helios.rows("SELECT * FROM engine_runs ORDER BY started_at")) and len(r) == 2 and r, "two runs"
    )
    assert runs[0]["end_reason"] == "lost"
    old = runs[0]["run_id"]
    assert (
        helios.rows("SELECT COUNT(*) AS n FROM plans WHERE run_id = :r AND outcome = 'in_flight'", r=old)[0]["n"] == 0
    )
    row = helios.rows("SELECT * FROM requests WHERE run_id = :r", r=old)[0]
    assert row["finish_reason"] == "error"
    lanes = "SELECT SUM(committed_tokens) AS n FROM plan_lanes WHERE run_id = :r"
    assert helios.rows(lanes, r=old)[0]["n"] >= seen


def test_a_killed_supervisor_leaves_no_orphan(helios):
    children = [helios.child(m) for m in ("service.engine", "service.recorder", "service.app")]
    helios.process.kill()
    helios.process.wait(10)
    wait_until(lambda: not any(map(alive, children)), "the children to end", 10)


def test_a_killed_recorder_is_replaced_and_misses_nothing(helios):
    recorder = helios.child("service.recorder")
    stream = long_stream(helios, 60)
    request_id = take(stream, 3)[0].id
    os.kill(recorder, signal.SIGKILL)
    for _ in stream:
        pass
    wait_until(lambda: helios.child("service.recorder") != recorder, "a new recorder")
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
    wait_until(lambda: helios.child("service.app") != service, "a new service")
    wait_until(helios.ready, "the new service", 60)
    wait_until(lambda: quiet(helios), "the orphaned request to end", 30)


def helios_serve(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "service.cli", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refused(result, *words):
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_a_start_that_cannot_work_says_why_and_exits_2(tmp_path, tiny_checkpoint):
    model = (*MODEL_OPTIONS, str(tiny_checkpoint))
    refused(helios_serve("--model", "gpt-9", "--data-dir", str(tmp_path / "a"), "--port", str(free_port())), "gpt-9")
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    refused(helios_serve(*model, "--data-dir", str(blocked), "--port", str(free_port())), str(blocked))
    corrupt = tmp_path / "corrupt"
    corrupt.mkdir()
    (corrupt / "helios.db").write_bytes(b"this is no database" * 100)
    refused(helios_serve(*model, "--data-dir", str(corrupt), "--port", str(free_port())), "helios.db")
    assert (corrupt / "helios.db").read_bytes() == b"this is no database" * 100
    refused(helios_serve(*model, "--data-dir", str(tmp_path / "b"), "--port", "70000"), "port")
    refused(helios_serve(*model, "--data-dir", str(tmp_path / "b"), "--dtype", "float8"), "dtype")


def test_a_port_or_data_directory_in_use_is_refused(helios, tiny_checkpoint, tmp_path):
    model = (*MODEL_OPTIONS, str(tiny_checkpoint))
    refused(helios_serve(*model, "--data-dir", str(tmp_path / "other"), "--port", str(helios.port)), str(helios.port))
    refused(
        helios_serve(*model, "--data-dir", str(helios.data_dir), "--port", str(free_port())), str(helios.process.pid)
    )
    assert helios.ready()


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
        assert len(helios.rows("SELECT * FROM engine_runs")) == 2
        assert helios.stop() == 0


def test_the_server_is_ended_by_ctrl_c_too(tmp_path, tiny_checkpoint):
    server = HeliosServer(tmp_path / "data", *MODEL_OPTIONS, str(tiny_checkpoint))
    try:
        server.wait_ready()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(15) == 0
    finally:
        server.end()
