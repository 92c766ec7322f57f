"""The metrics of a whole server under a mixed load: against SQL, against traces, through Prometheus, over a kill."""

from __future__ import annotations

import concurrent.futures
import math
import os
import signal

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import exemplars, instant, prometheus_scraping
from waiting import wait_until

from service.telemetry.metric_table import METRIC_BY_NAME, STORED, MetricType, Owner
from service.telemetry.span_ids import plan_ids, request_ids
from tests.e2e.helios_server import HeliosServer, serving
from tests.e2e.metric_sums import sample, scrape, sums_in_sql
from tests.e2e.observation import at_rest

pytestmark = [pytest.mark.e2e, pytest.mark.prometheus, pytest.mark.timeout(300)]

MODEL = "smollm2-135m-instruct"
CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
CATALOG = """kind,B,D,W,P,prefill_capacity,duration_ms
prefill,1,0,0,64,64,30
prefill,1,0,0,512,512,90
decode,1,0,1,1,0,50
decode,8,0,1,8,0,60
speculative,1,2,3,3,0,60
speculative,8,2,3,24,0,80
"""


@pytest.fixture(scope="module")
def helios(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "catalog.csv").write_text(CATALOG)
    (folder / "acceptance.csv").write_text("target,pos1,pos2\nany,0.8,0.6\n")
    options = ("--device", "simulated", "--catalog", str(folder / "catalog.csv"), "--time-scale", "0.1")
    drafts = ("--draft-tokens", "2", "--acceptance", str(folder / "acceptance.csv"))
    with serving(folder / "data", *options, *drafts) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(helios, tmp_path_factory):
    """The address of a Prometheus that scrapes the server from before its first request."""
    with prometheus_scraping(f"127.0.0.1:{helios.port}", tmp_path_factory.mktemp("prometheus")) as address:
        wait_until(lambda: instant(address, "flare_engine_up"), "the first scrape", 60)
        yield address


def chat(client: openai.OpenAI, word: str, tokens: int, **more: object) -> str:
    message = {"role": "user", "content": f"Say {word}."}
    answer = client.chat.completions.create(model=MODEL, messages=[message], max_tokens=tokens, **more)
    return answer.choices[0].message.content


def leave_a_stream(client: openai.OpenAI) -> None:
    message = {"role": "user", "content": "Go on and on."}
    stream = client.chat.completions.create(model=MODEL, messages=[message], max_tokens=900, stream=True)
    for _, _chunk in zip(range(4), stream, strict=False):
        pass
    stream.close()


def mixed_load(helios: HeliosServer) -> None:
    """Chats and completions beside each other, of every ending but an error, one of them in its caller's trace."""
    client = helios.client(http_client=httpx.Client(verify=False))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        running = [pool.submit(chat, client, f"w{number}", 10 + 7 * number, seed=number) for number in range(5)]
        running.append(pool.submit(leave_a_stream, client))
        running.append(pool.submit(client.completions.create, model=MODEL, prompt="Once", max_tokens=20, n=2, seed=1))
        running.append(pool.submit(client.completions.create, model=MODEL, prompt="One", max_tokens=1))
        for future in running:
            future.result()
    whole = chat(client, "stop", 30, seed=5)
    assert len(chat(client, "stop", 30, seed=5, stop=[whole[8:11]])) < len(whole)
    traced = {"traceparent": f"00-{CALLER}-00f067aa0ba902b7-01"}
    chat(client, "trace", 12, extra_headers=traced)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=MODEL, prompt="word " * 9_000, max_tokens=4)


@pytest.fixture(scope="module")
def loaded(helios, prometheus) -> HeliosServer:
    """The server at rest after the load, which Prometheus has watched."""
    mixed_load(helios)
    wait_until(lambda: at_rest(helios), "the server to be at rest", 30)
    return helios


def test_every_sum_is_that_of_the_rows_in_sql(loaded):
    expected, shown = sums_in_sql(loaded, MODEL), scrape(loaded)
    wrong = {
        name: (want, shown.get(name))
        for name, want in expected.items()
        if not abs(shown.get(name, math.nan) - want.value) <= want.tolerance
    }
    assert not wrong
    assert len(expected) > 100
    reasons = {outcome: shown[sample("flare_requests_total", outcome=outcome)] for outcome in ("stop", "length")}
    assert reasons == {"stop": 1, "length": 10}
    assert shown[sample("flare_requests_total", outcome="abort")] == 1
    assert shown[sample("flare_requests_total", outcome="refused")] == 0
    for series in ("flare_output_tokens_total", "flare_prompt_tokens_total", "flare_inter_token_seconds_count"):
        assert shown[sample(series)] > 0


def test_rounds_and_drafts_are_those_of_the_lanes_and_plans(loaded):
    shown = scrape(loaded)

    def total(name: str) -> float:
        return sum(value for found, value in shown.items() if found.name == name)

    drafted = loaded.rows("SELECT SUM(draft_tokens) AS n FROM plans")[0]["n"]
    assert total("flare_speculative_draft_tokens_total") == drafted > 0
    lanes = loaded.rows(
        "SELECT l.offered_tokens, r.finish_reason FROM plan_lanes l JOIN plans p USING (run_id, fence) "
        "JOIN requests r USING (run_id, request_id) WHERE l.proposal_source IS NOT NULL AND p.draft_depth > 0"
    )
    rounds = total("flare_speculative_rounds_total")
    assert total("flare_speculative_accepted_length_count") == rounds
    gone = len(lanes) - rounds  # in flight when their client left or their stop string was found
    assert 0 <= gone <= 2 * sum(loaded.metric(f'flare_requests_total{{outcome="{o}"}}') for o in ("abort", "stop"))
    offered = sum(lane["offered_tokens"] for lane in lanes)
    assert total("flare_speculative_target_rows_total") == offered + rounds


def test_gauges_say_what_is_so_at_rest(loaded):
    shown = scrape(loaded)
    for name in ("flare_requests_running", "flare_requests_waiting", "flare_oldest_wait_seconds"):
        assert shown[sample(name)] == 0
    wait_until(lambda: loaded.metric('flare_trace_lag_seconds{sink="sql"}') == 0, "the recorder to have nothing left")
    (newest,) = loaded.rows("SELECT * FROM policy_versions ORDER BY version DESC LIMIT 1")
    assert shown[sample("flare_scheduler_policy_version")] == newest["version"]
    for (coefficient,) in METRIC_BY_NAME["flare_scheduler_policy"].series():
        assert shown[sample("flare_scheduler_policy", coefficient=coefficient)] == newest[coefficient]


def test_prometheus_answers_with_the_numbers_of_sql(loaded, prometheus):
    tokens = loaded.rows("SELECT SUM(output_tokens) AS n FROM requests")[0]["n"]
    query = "sum(flare_output_tokens_total)"
    wait_until(lambda: instant(prometheus, query) == {(): tokens}, f"{tokens} tokens", 30)
    whole = {(): float(loaded.rows("SELECT COUNT(*) AS n FROM requests")[0]["n"])}
    assert instant(prometheus, "sum(gen_ai_server_request_duration_seconds_count)") == whole
    assert instant(prometheus, "flare_request_seconds_count") == {("flare_request_seconds_count",): whole[()]}
    status = instant(prometheus, "sum by (http_response_status_code) (http_server_request_duration_seconds_count)")
    assert status["400",] == 1
    assert instant(prometheus, "sum(flare_policy_guards_total)") == {(): 0.0}


def test_exemplars_reach_prometheus_and_lead_to_spans(loaded, prometheus):
    requests = {
        request_ids(row["run_id"], row["request_id"], row["trace_id"]).trace_id.hex()
        for row in loaded.rows("SELECT run_id, request_id, trace_id FROM requests")
    }
    plans = {
        plan_ids(row["run_id"], row["fence"]).trace_id.hex() for row in loaded.rows("SELECT run_id, fence FROM plans")
    }
    assert CALLER in requests
    for metric in STORED:
        if not metric.traced:
            continue
        known = requests if "request" in metric.name or "token" in metric.name or "queue" in metric.name else plans
        query = f"{metric.name}_bucket"
        found = wait_until(lambda query=query: exemplars(prometheus, query), f"exemplars of {metric.name}", 30)
        assert {one["labels"]["trace_id"] for one in found} <= known, metric.name


def test_a_killed_engine_is_down_without_stale_gauges_and_its_counters_begin_anew(loaded, prometheus):
    """Last of the module: the engine is another afterwards. Every scrape meanwhile is whole."""
    wait_until(lambda: instant(prometheus, "resets(flare_output_tokens_total[1h])"), "a range to look at")
    os.kill(loaded.child("service.engine"), signal.SIGKILL)
    wait_until(lambda: loaded.metric("flare_engine_up") == 0, "the engine to be seen as down")
    counters = {metric.name for metric in STORED if metric.type is MetricType.COUNTER and metric.owner is Owner.ENGINE}
    falls = dict.fromkeys(counters, 0)
    before = scrape(loaded)
    while not loaded.ready():
        shown = scrape(loaded)
        assert all(math.isfinite(value) for value in shown.values())
        up = shown[sample("flare_engine_up")]
        running = shown.get(sample("flare_requests_running"))
        assert running is not None if up else running in (None, 0.0)  # a new engine that is not up yet has zeros
        for series, value in shown.items():
            if series.name in counters:
                falls[series.name] += value < before.get(series, 0.0)
        before = shown
    assert not any(falls.values())  # they had fallen to 0 before, and have not moved yet
    client = loaded.client(http_client=httpx.Client(verify=False))
    chat(client, "again", 9)
    wait_until(lambda: loaded.metric("flare_output_tokens_total") == 9, "the new engine's tokens")
    resets = {(): 1.0}
    wait_until(lambda: instant(prometheus, "max(resets(flare_output_tokens_total[1h]))") == resets, "one reset", 30)
    wait_until(lambda: instant(prometheus, "flare_engine_up") == {("flare_engine_up",): 1.0}, "it to be up", 30)
    text = loaded.http.get("/metrics").text
    assert {family.name for family in text_string_to_metric_families(text)} >= {"flare_requests", "flare_engine_up"}
