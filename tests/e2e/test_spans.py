"""The spans of a whole server at a collector, against its store: request, plan, policy and control spans."""

from __future__ import annotations

import pytest
from otlp_receiver import Answer, OtlpReceiver, attributes
from waiting import wait_until

from tests.e2e.helios_server import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CATALOG = """kind,B,D,W,P,prefill_capacity,duration_ms
prefill,1,0,0,64,64,30
prefill,1,0,0,512,512,90
decode,1,0,1,1,0,50
decode,8,0,1,8,0,60
"""
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
MODEL = "smollm2-135m-instruct"
EXACT = (
    "kind", "reason", "batch_capacity", "draft_depth", "target_width", "target_rows", "prefill_capacity",
    "policy_version", "queue_depth", "score_kind", "outcome", "output_tokens",
)  # fmt: skip
PHASES = ("tokenize", "queue", "prefill", "decode", "publish")


@pytest.fixture(scope="module")
def receiver():
    made = OtlpReceiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def helios(receiver, tmp_path_factory):
    """Named by the standard's variables alone; the collector has trouble first."""
    folder = tmp_path_factory.mktemp("spans")
    (folder / "catalog.csv").write_text(CATALOG)
    options = ["--device", "simulated", "--catalog", str(folder / "catalog.csv"), "--time-scale", "0.1"]
    receiver.answers = [503, Answer(429, {"Retry-After": "0"}), Answer(how="reset")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret-of-the-collector")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        patch.setenv("OTEL_SERVICE_NAME", "chat")
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        with serving(folder / "data", *options) as server:
            yield server


def chat(helios, flags: str | None = "01", **more) -> str:
    headers = {} if flags is None else {"traceparent": f"00-{TRACE}-{PARENT}-{flags}", "tracestate": "k=v"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 8, **more}
    answer = helios.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    return answer.json()["id"]


@pytest.fixture(scope="module")
def story(helios, receiver) -> dict[str, str]:
    """A request in a caller's trace, one whose caller does not sample, one without, and a change of the policy."""
    asked = {"sampled": chat(helios, seed=7, temperature=0.5), "hidden": chat(helios, "00"), "own": chat(helios, None)}
    etag = helios.http.get("/api/policy").headers["etag"]
    body = {"coefficients": {"token_fairness": 8.5}, "actor": "anna"}
    assert helios.http.put("/api/policy", json=body, headers={"If-Match": etag}).status_code == 200
    finished = "SELECT count(*) AS n FROM requests WHERE finished_at IS NOT NULL"
    wait_until(lambda: helios.rows(finished)[0]["n"] == 3, "the store to have the requests")
    fence = wait_until(
        lambda: helios.rows("SELECT max(fence) AS f FROM plans WHERE outcome = 'completed'")[0]["f"], "the plans"
    )
    receiver.wait_for(
        lambda: (
            {fence} & {attributes(span)["helios.plan.fence"] for span in receiver.named("helios.plan")}
            and len(receiver.named(f"chat {MODEL}")) == 2
            and len(receiver.named("helios.policy_change")) == 2
            and receiver.named("PUT /api/policy")
        ),
        "the spans",
    )
    return asked


def spans_of(receiver) -> dict:
    return {attributes(span)["gen_ai.response.id"]: span for span in receiver.named(f"chat {MODEL}")}


def test_every_plan_of_the_store_is_a_span_linked_to_the_requests_of_its_lanes(helios, receiver, story):
    sent = receiver.named("helios.plan")
    assert len({span.span_id for span in sent}) == len(sent)
    by_fence = {attributes(span)["helios.plan.fence"]: span for span in sent}
    traces = {row["request_id"]: row["trace_id"] for row in helios.rows("SELECT * FROM requests")}
    rows = helios.rows("SELECT * FROM plans WHERE outcome = 'completed'")
    assert set(by_fence) == {row["fence"] for row in rows}
    for row in rows:
        span = by_fence[row["fence"]]
        found = attributes(span)
        for name in EXACT:
            assert found[f"helios.plan.{name}"] == row[name], name
        for name in ("selected_cost_ms", "exploration_credit_ms", "value_rate", "log_scale", "device_ms"):
            assert found[f"helios.plan.{name}"] == pytest.approx(row[name]), name
        for ledger in ("timing", "acceptance"):
            for part in ("credit_ms", "spent_ms"):
                assert found[f"helios.ledger.{ledger}.{part}"] == pytest.approx(row[f"{ledger}_{part}"])
        assert span.end_time_unix_nano - span.start_time_unix_nano == row["completed_ns"] - row["committed_ns"]
        served = helios.rows("SELECT request_id FROM plan_lanes WHERE fence = :f ORDER BY lane", f=row["fence"])
        assert [link.trace_id.hex() for link in span.links] == [traces[lane["request_id"]] for lane in served]


def test_a_request_is_a_span_of_its_callers_trace_whose_phases_add_up(helios, receiver, story):
    rows = {row["request_id"]: row for row in helios.rows("SELECT * FROM requests")}
    found = spans_of(receiver)
    assert set(found) == {story["sampled"], story["own"]}  # -00 hides that span, and nothing in the store
    assert set(rows) == set(story.values())
    for request_id, span in found.items():
        row, values = rows[request_id], attributes(span)
        assert row["trace_id"] == span.trace_id.hex()
        assert values["gen_ai.usage.output_tokens"] == row["output_tokens"] == 8
        assert values["gen_ai.usage.input_tokens"] == row["prompt_tokens"]
        assert values["gen_ai.response.finish_reasons"] == [row["finish_reason"]] == ["length"]
        phases = [values[f"helios.request.{phase}_ms"] for phase in PHASES]
        assert phases == pytest.approx([row[f"{phase}_ms"] for phase in PHASES])
        lasted_ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        assert sum(phases) == pytest.approx(lasted_ms, abs=1e-3)
        first, finish = span.events
        assert (first.name, finish.name) == ("helios.first_output", "helios.finish")
        assert span.start_time_unix_nano < first.time_unix_nano <= finish.time_unix_nano == span.end_time_unix_nano
    sampled, own = found[story["sampled"]], found[story["own"]]
    assert (sampled.trace_id.hex(), sampled.parent_span_id.hex(), sampled.trace_state) == (TRACE, PARENT, "k=v")
    assert (own.parent_span_id, own.trace_state) == (b"", "")
    assert attributes(sampled)["gen_ai.request.seed"] == 7
    assert attributes(sampled)["gen_ai.request.temperature"] == 0.5
    assert rows[story["hidden"]]["trace_id"] == TRACE


def test_a_policy_change_is_a_span_of_the_engine_and_one_of_who_asked_for_it(helios, receiver, story):
    changes = {
        attributes(span)["helios.policy.version"]: attributes(span) for span in receiver.named("helios.policy_change")
    }
    applied = helios.rows("SELECT * FROM policy_applications")
    assert {(version, found["helios.policy.fence"]) for version, found in changes.items()} == {
        (row["version"], row["fence"]) for row in applied
    }
    newest = max(changes)
    assert changes[newest]["helios.policy.token_fairness"] == 8.5
    (proposal,) = receiver.named("helios.policy_proposal")
    assert attributes(proposal)["helios.policy.version"] == newest
    assert attributes(proposal)["helios.policy.actor"] == "anna"
    (call,) = receiver.named("PUT /api/policy")
    assert proposal.parent_span_id == call.span_id


def test_who_sends_is_what_the_environment_says_and_credentials_are_written_nowhere(helios, receiver, story):
    (run,) = helios.rows("SELECT * FROM engine_runs")
    resources = [attributes(item.resource) for request in receiver.requests for item in request.resource_spans]
    assert {who["service.name"] for who in resources} == {"chat"}
    assert {who["deployment.environment.name"] for who in resources} == {"test"}
    assert {who["helios.run_id"] for who in resources if "helios.run_id" in who} == {run["run_id"]}
    assert {headers["api-key"] for headers in receiver.headers} == {"secret-of-the-collector"}
    assert "secret-of-the-collector" not in str(run)
    written = [path for path in helios.data_dir.rglob("*") if path.is_file() and path.suffix in (".json", ".log")]
    assert written
    assert not [path for path in written if b"secret-of-the-collector" in path.read_bytes()]


def test_nothing_was_lost(helios, receiver, story):
    assert helios.metric("flare_trace_lost_spans_total") == 0
    assert helios.rows("SELECT * FROM trace_gaps") == []
