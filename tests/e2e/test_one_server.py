"""Clients that go away, and second servers that are refused: one server of the tiny model lives through it all."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys

import httpx
import pytest
from promtool import KNOWN_REMARKS, remarks
from waiting import free_port, wait_until

from tests.e2e.endless_model import MODEL_OPTIONS, long_stream, model_of, quiet, take
from tests.e2e.helios_server import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def helios(tmp_path_factory, tiny_checkpoint):
    with serving(tmp_path_factory.mktemp("one") / "data", *MODEL_OPTIONS, str(tiny_checkpoint)) as server:
        yield server


def ended(helios, request_id):
    """The request's row once it has an end."""
    query = "SELECT * FROM requests WHERE request_id = :id AND finish_reason IS NOT NULL"
    return wait_until(lambda: helios.rows(query, id=request_id), "the request's end in SQL")[0]


def test_a_client_that_disconnects_stops_costing(helios):
    total = helios.metric("flare_kv_pages_total")
    aborts = helios.metric('flare_requests_total{outcome="abort"}')
    stream = long_stream(helios)
    request_id = take(stream, 3)[0].id
    stream.close()
    wait_until(lambda: quiet(helios), "the request to end and free its pages")
    assert helios.metric("flare_kv_pages_total") == total
    row = ended(helios, request_id)
    assert row["finish_reason"] == "abort"
    assert 3 <= row["output_tokens"] < 8000
    lanes = "SELECT SUM(committed_tokens) AS n FROM plan_lanes WHERE request_id = :id"
    assert helios.rows(lanes, id=request_id)[0]["n"] == row["output_tokens"]
    assert helios.metric('flare_requests_total{outcome="abort"}') == aborts + 1


def test_a_client_that_disconnects_behind_a_whole_answer_stops_costing(helios):
    body = {"model": model_of(helios), "prompt": "once upon a time", "max_tokens": 8000}
    earlier = {row["request_id"] for row in helios.rows("SELECT request_id FROM requests")}
    client = http.client.HTTPConnection("127.0.0.1", helios.port)
    client.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    wait_until(lambda: helios.metric("flare_requests_running") == 1, "the request to run")
    client.close()
    wait_until(lambda: quiet(helios), "the request to end and free its pages")
    stored = "SELECT * FROM requests WHERE finish_reason IS NOT NULL"
    row = wait_until(lambda: [r for r in helios.rows(stored) if r["request_id"] not in earlier], "its end in SQL")[0]
    assert row["finish_reason"] == "abort"
    assert row["output_tokens"] < 8000


def test_twenty_clients_that_come_and_go_leave_no_page_behind(helios):
    aborts = helios.metric('flare_requests_total{outcome="abort"}')
    open_streams = []
    for number in range(20):
        stream = long_stream(helios)
        if number % 7 == 0:
            open_streams.append(stream)  # three stay, so that others go from between them; a fifth would have to wait
        else:
            take(stream, number % 3)
            stream.close()
    for stream in open_streams:
        stream.close()
    wait_until(lambda: helios.metric('flare_requests_total{outcome="abort"}') == aborts + 20, "all twenty to end")
    wait_until(lambda: quiet(helios), "every page to be free")
    assert len(list(long_stream(helios, 5))) >= 5


@pytest.mark.prometheus
def test_promtool_reads_the_metrics_of_the_whole_server(helios):
    list(long_stream(helios, 3))
    answer = httpx.get(f"{helios.base}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert remarks(answer.content) == KNOWN_REMARKS


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
