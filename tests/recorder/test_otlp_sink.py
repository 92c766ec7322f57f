"""Spans at a real local collector: types, links, one per plan and request, none lost and none twice."""

from __future__ import annotations

import enum

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.schemas import Schemas
from otlp_receiver import attributes, plain

from service.journal.reader import JournalReader
from service.journal.records import RequestOptions
from service.recorder.collector import Collector
from service.recorder.offsets import OTLP_OPEN, OTLP_SINK
from service.recorder.open_spans import SpanOptions
from service.recorder.otlp_sink import UNUSABLE, OtlpSink
from service.recorder.pump import SinkUnavailable
from service.store.tables import engine_runs, journal_offsets, plans, requests, trace_gaps
from service.telemetry import otlp
from service.telemetry.exporter_settings import ExporterSettings
from service.telemetry.span_limits import SpanLimits

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


PATH = "/v1/traces"


def ship(store, directory, url, make, batch: int = 5, stop_after: int | None = None, options=None):
    """What the pump does. Returns (delivered, lost) records."""
    reader = JournalReader(directory)
    sink = OtlpSink(store, reader.journal_id, Collector(ExporterSettings(url + PATH)), options=options)
    reader.position = sink.resume()
    delivered = lost = 0
    pending, count = [], 0
    while (item := reader.poll()) is not None and count != stop_after:
        count += 1
        if pending and (len(pending) >= batch or make._run_changes(pending, item)):
            done = sink.deliver(pending)
            delivered, lost, pending = delivered + done.delivered, lost + done.lost, []
        pending.append(item)
    if pending:
        done = sink.deliver(pending)
        delivered, lost = delivered + done.delivered, lost + done.lost
    if stop_after is None:
        sink.close_lost_run()
    reader.close()
    return delivered, lost


def test_a_plan_becomes_a_span_with_typed_attributes_linked_to_its_requests(store, tmp_path, make, collector):
    frames = make.story(2)
    frames[1][0] = make.arrived("request-0", trace_id=TRACE, parent_span_id=PARENT)
    make.write_frames(tmp_path, frames)
    ship(store, tmp_path, collector.url, make)
    spans = [span for span in collector.spans if span.name == "helios.plan"]
    assert len(spans) == 2
    span = spans[0]
    assert span.start_time_unix_nano == make.WALL_NS + 10_000_000
    assert span.end_time_unix_nano == make.WALL_NS + 18_000_000
    found = attributes(span)
    expected = {
        "kind": "decode", "batch_capacity": 8, "draft_depth": 0, "target_width": 1, "target_rows": 8,
        "prefill_capacity": 0, "prompt_rows": 1, "reason": "ordinary", "fence": 1,
        "selected_cost_ms": 20.0, "observation_age_ms": 7.0,
        "exploration_credit_ms": 0.0, "value_rate": 3.5, "log_scale": 0.5, "policy_version": 1, "queue_depth": 3,
    }  # fmt: skip
    for name, value in expected.items():
        item = found[f"helios.plan.{name}"]
        assert (type(item), item) == (type(value), value), name
    for ledger in ("timing", "acceptance"):
        assert isinstance(found[f"helios.ledger.{ledger}.credit_ms"], float)
        assert isinstance(found[f"helios.ledger.{ledger}.spent_ms"], float)
    assert span.flags == 0x101
    served = {span.span_id: span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER}
    assert {link.span_id for link in span.links} == set(served)
    assert [link.trace_id for link in span.links] == [served[link.span_id].trace_id for link in span.links]
    assert {link.flags for link in span.links} == {0x101}
    assert span.links[0].trace_id.hex() == TRACE


OPTIONS = RequestOptions(0.5, 0.9, 40, 0.0, 0.25, 7, True, 2)


def test_a_request_becomes_a_server_span_in_the_callers_trace(store, tmp_path, make, collector):
    frames = make.story(2)
    caller = {"trace_id": TRACE, "parent_span_id": PARENT, "trace_state": "vendor=x,other=y"}
    frames[1][0] = make.arrived("request-0", operation="chat", options=OPTIONS, **caller)
    make.write_frames(tmp_path, frames)
    ship(store, tmp_path, collector.url, make)
    first, second = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    assert (first.name, first.flags, first.trace_state) == ("chat model-1", 0x301, "vendor=x,other=y")
    assert (second.name, second.flags, second.trace_state) == ("text_completion model-1", 0x101, "")
    assert second.parent_span_id == b""
    assert [event.name for event in first.events] == ["helios.first_output", "helios.finish"]
    assert [event.time_unix_nano - make.WALL_NS for event in first.events] == [19_000_000, 30_000_000]
    assert attributes(first.events[1]) == {"helios.request.finish_reason": "stop"}
    assert first.status.code == Status.STATUS_CODE_UNSET
    expected = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "helios", "gen_ai.output.type": "text",
        "gen_ai.request.model": "model-1", "gen_ai.response.model": "model-1", "gen_ai.request.max_tokens": 64,
        "gen_ai.response.id": "request-0", "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 2, "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 0.9, "gen_ai.request.top_k": 40.0,
        "gen_ai.request.presence_penalty": 0.0, "gen_ai.request.frequency_penalty": 0.25, "gen_ai.request.seed": 7,
        "gen_ai.request.stream": True, "gen_ai.request.choice.count": 2, "gen_ai.response.time_to_first_chunk": 0.017,
    }  # fmt: skip
    found = {name: value for name, value in attributes(first).items() if name.startswith("gen_ai.")}
    assert found == expected
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in expected.items()}
    assert not {"gen_ai.request.seed", "gen_ai.request.temperature"} & set(attributes(second))


def test_the_phases_of_a_request_add_up_to_its_span(store, tmp_path, make, collector):
    frames = make.story(3)
    frames[-2] = [make.finished("request-0", 2 + 0.4 + 2 + 30 + 50 + 1)]
    make.write_frames(tmp_path, frames)
    ship(store, tmp_path, collector.url, make)
    span = next(s for s in collector.spans if attributes(s).get("gen_ai.response.id") == "request-0")
    found = attributes(span)
    phases = [found[f"helios.request.{phase}_ms"] for phase in ("tokenize", "queue", "prefill", "decode", "publish")]
    assert sum(phases) == pytest.approx((span.end_time_unix_nano - span.start_time_unix_nano) / 1e6)


def test_a_request_that_failed_is_an_error_with_its_reason(store, tmp_path, make, collector):
    frames = make.story(1)
    frames[-2] = [make.finished("request-0", finish_reason="error", error="out of memory"), make.finished("request-1")]
    make.write_frames(tmp_path, frames)
    ship(store, tmp_path, collector.url, make)
    (failed,) = [span for span in collector.spans if span.status.code == Status.STATUS_CODE_ERROR]
    assert failed.status.message == "out of memory"
    assert attributes(failed)["error.type"] == "error"
    assert attributes(failed)["gen_ai.response.finish_reasons"] == ["error"]


def test_a_policy_change_becomes_a_span(store, tmp_path, make, collector):
    make.write_frames(tmp_path, make.story(1))
    ship(store, tmp_path, collector.url, make)
    (span,) = collector.named("helios.policy_change")
    found = attributes(span)
    assert found == {
        "helios.policy.version": 1, "helios.policy.fence": 0, "helios.policy.token_fairness": 16.0,
        "helios.policy.estimate_ttl_ns": 30_000_000_000,
    }  # fmt: skip
    assert isinstance(found["helios.policy.estimate_ttl_ns"], int)
    assert span.start_time_unix_nano == span.end_time_unix_nano == make.WALL_NS + 1_000_000


def test_every_request_names_its_schema_and_its_scope(store, tmp_path, make, collector):
    make.write_frames(tmp_path, make.story(1))
    ship(store, tmp_path, collector.url, make)
    for item in (item for request in collector.requests for item in request.resource_spans):
        (scope,) = item.scope_spans
        assert item.schema_url == scope.schema_url == Schemas.V1_41_0.value
        assert (scope.scope.name, bool(scope.scope.version)) == ("helios", True)
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for span in collector.spans for name in attributes(span) if name.startswith("gen_ai.")}
    assert used <= known


def test_the_resource_names_the_run(store, tmp_path, make, collector):
    make.write_frames(tmp_path, make.story(1))
    ship(store, tmp_path, collector.url, make, batch=100)
    found = attributes(collector.requests[-1].resource_spans[0].resource)
    assert found["service.name"] == "helios"
    assert found["service.instance.id"] == "run-1"
    assert found["host.name"] == "host-1"
    assert found["helios.run_id"] == "run-1"


def test_what_the_environment_says_of_the_resource_goes_before_what_the_run_says(store, tmp_path, make, collector):
    make.write_frames(tmp_path, make.story(1))
    environment = {"service.name": "chat", "host.name": "pod-7", "deployment.environment.name": "production"}
    ship(store, tmp_path, collector.url, make, batch=100, options=SpanOptions(resource=environment))
    found = attributes(collector.requests[-1].resource_spans[0].resource)
    assert found.items() >= environment.items()
    assert (found["helios.run_id"], found["helios.model"]) == ("run-1", "model-1")


def test_five_thousand_plans_arrive_once_each(store, tmp_path, make, collector):
    """C27."""
    frames = [[make.started(), make.arrived("a")]]
    for fence in range(1, 5001):
        frames.append([make.plan(fence, ["a"], fence / 5, alternatives=0), make.completed(fence, 1, fence / 5 + 30)])
    make.write_frames(tmp_path, frames)
    delivered, lost = ship(store, tmp_path, collector.url, make, batch=250)
    sent = [span.span_id for span in collector.spans if span.name == "helios.plan"]
    assert len(sent) == len(set(sent)) == 5000
    assert (delivered, lost) == (10_002, 0)


def test_five_thousand_plans_sent_and_declared_lost_add_up_under_a_small_budget(store, tmp_path, make, collector):
    """C27 with a journal that cannot hold them."""
    frames = [[make.started(), make.arrived("a")]]
    for fence in range(1, 5001):
        frames.append([make.plan(fence, ["a"], fence / 5, alternatives=0)])
    make.write_frames(tmp_path, frames, budget_bytes=256 << 10)
    delivered, lost = ship(store, tmp_path, collector.url, make, batch=250)
    assert lost > 0
    assert delivered + lost == 5002
    assert len([span for span in collector.spans if span.name == "helios.plan"]) == delivered


def test_a_collector_that_fails_three_times_gets_everything_in_the_end(store, tmp_path, make, collector):
    """C29: a failure says so, and nothing is counted as delivered before it was."""
    make.write_frames(tmp_path, make.story(3))
    collector.answers = [503, 429, 504]
    reader = JournalReader(tmp_path)
    sink = OtlpSink(store, reader.journal_id, Collector(ExporterSettings(collector.url + PATH)))
    items = []
    while (item := reader.poll()) is not None:
        items.append(item)
    for _ in range(3):
        with pytest.raises(SinkUnavailable):
            sink.deliver(items)
        assert make.rows(store, journal_offsets) == []
        assert collector.spans == []
    done = sink.deliver(items)
    assert done.lost == 0
    assert len({span.span_id for span in collector.spans}) == len(collector.spans) == 3 + 2 + 1
    reader.close()


def test_a_collector_that_refuses_large_requests_gets_small_ones(store, tmp_path, make, collector):
    make.write_frames(tmp_path, make.story(5))
    collector.refuse_larger_than = 2
    assert ship(store, tmp_path, collector.url, make, batch=100)[1] == 0
    assert len({span.span_id for span in collector.spans}) == 5 + 2 + 1


def test_a_span_that_the_collector_refuses_for_good_is_counted(store, tmp_path, make, collector):
    make.write_frames(tmp_path, make.story(5))
    collector.refuse_larger_than = 0
    items = make.batches(tmp_path)
    done = OtlpSink(store, "journal", Collector(ExporterSettings(collector.url + PATH))).deliver(items)
    assert (done.delivered, done.lost) == (sum(len(batch.records) for batch in items), 0)
    assert done.lost_spans == 5 + 2 + 1


@pytest.mark.parametrize("stop_after", range(1, 13))
def test_a_restart_at_any_frame_sends_every_span_once(store, tmp_path, make, collector, stop_after):
    make.write_frames(tmp_path, make.story(4))
    make.drain(store, tmp_path)
    ship(store, tmp_path, collector.url, make, batch=3, stop_after=stop_after)
    ship(store, tmp_path, collector.url, make, batch=3)
    ids = [span.span_id for span in collector.spans]
    assert len(set(ids)) == len(ids) == 4 + 2 + 1
    first = next(span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER)
    assert first.start_time_unix_nano == make.WALL_NS + 2_000_000
    offsets = {row["sink"]: row for row in make.rows(store, journal_offsets)}
    assert set(offsets) == {"sql", OTLP_SINK, OTLP_OPEN}


def test_an_engine_that_was_killed_ends_its_spans_as_errors(store, tmp_path, make, collector):
    make.write_frames(tmp_path, [[make.started(), make.arrived("a"), make.plan(1, ["a"], 30)]])
    make.write_frames(tmp_path, make.story(1, run_id="run-2"), "run-2")
    ship(store, tmp_path, collector.url, make)
    lost = [span for span in collector.spans if span.status.code == Status.STATUS_CODE_ERROR]
    assert sorted(span.name for span in lost) == ["helios.plan", "text_completion model-1"]
    assert {span.end_time_unix_nano for span in lost} == {make.WALL_NS + 30_000_000}


def test_a_record_that_otlp_cannot_hold_costs_only_itself(store, tmp_path, make, collector):
    frames = make.story(2)
    frames[1].append(make.arrived("bad", max_tokens=2**64 - 1))
    frames[-2].append(make.finished("bad"))
    make.write_frames(tmp_path, frames)
    _delivered, lost = ship(store, tmp_path, collector.url, make)
    assert lost == 1
    assert len(collector.spans) == 2 + 2 + 1


@pytest.mark.parametrize("end", ["last words", "next run", "killed"])
def test_an_open_request_that_otlp_cannot_hold_does_not_hold_up_the_end_of_its_run(
    store, tmp_path, make, collector, end
):
    frames = [[make.started()], [make.arrived("bad", max_tokens=2**64 - 1), make.arrived("good")]]
    make.write_frames(tmp_path, frames + ([[make.ended()]] if end == "last words" else []))
    if end == "next run":
        make.write_frames(tmp_path, make.story(1, run_id="run-2"), "run-2")
    ship(store, tmp_path, collector.url, make)
    assert attributes(collector.spans[0])["gen_ai.response.id"] == "good"
    (gap,) = make.rows(store, trace_gaps)
    assert gap["reason"] == f"1 spans were not sent: {UNUSABLE}"
    assert gap["run_id"] == "run-1"


def test_an_overtaken_plan_that_otlp_cannot_hold_does_not_take_the_next_one_with_it(store, tmp_path, make, collector):
    frames = [[make.started(), make.plan(1, [], policy_version=2**64 - 1)], [make.plan(2, [])], [make.completed(2, 0)]]
    make.write_frames(tmp_path, frames)
    ship(store, tmp_path, collector.url, make)
    (span,) = collector.spans
    assert attributes(span)["helios.plan.fence"] == 2
    assert attributes(span)["helios.plan.outcome"] == "completed"


def test_two_hundred_lanes_keep_reason_and_shape(store, tmp_path, make, collector):
    """C31: nothing limits or evicts attributes."""
    names = [f"request-{number}" for number in range(200)]
    make.write_frames(tmp_path, [[make.started(), make.plan(1, names), make.completed(1, 200)]], segment_bytes=1 << 20)
    ship(store, tmp_path, collector.url, make)
    (span,) = collector.spans
    assert attributes(span)["helios.plan.reason"] == "ordinary"
    assert attributes(span)["helios.plan.batch_capacity"] == 8
    assert len(span.links) == 200


def test_limits_cut_a_span_down_to_its_kind_reason_and_shape(store, tmp_path, make, collector):
    """A limit of the environment's never takes these."""
    make.write_frames(tmp_path, make.story(1))
    options = SpanOptions(limits=SpanLimits(attributes=0, links=1, events=1, value_length=2))
    ship(store, tmp_path, collector.url, make, options=options)
    (plan,) = collector.named("helios.plan")
    shape = ("batch_capacity", "draft_depth", "target_width", "target_rows", "prefill_capacity", "prompt_rows")
    assert set(attributes(plan)) == {f"helios.plan.{name}" for name in ("kind", "reason", "fence", *shape)}
    assert attributes(plan)["helios.plan.kind"] == "de"
    assert (len(plan.links), plan.dropped_links_count, plan.dropped_attributes_count) == (1, 1, 15)
    request = next(span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER)
    assert (len(request.attributes), [event.name for event in request.events]) == (0, ["helios.finish"])
    assert (request.dropped_events_count, request.dropped_attributes_count > 10) == (1, True)


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (np.int64(7), "int_value", 7), (np.float32(0.5), "double_value", 0.5), (np.float64(0.25), "double_value", 0.25),
        (True, "bool_value", True), (Colour.RED, "string_value", "red"), (2**63 - 1, "int_value", 2**63 - 1),
        (-(2**63), "int_value", -(2**63)), ("é", "string_value", "é"), (0, "int_value", 0), (0.0, "double_value", 0.0),
    ],
)  # fmt: skip
def test_an_attribute_keeps_its_type(value, kind, expected):
    """C30."""
    item = otlp.attribute("name", value).value
    assert item.WhichOneof("value") == kind
    assert plain(item) == expected


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, object(), None, 1j])
def test_an_attribute_that_cannot_be_held_is_refused_and_not_turned_into_text(value):
    with pytest.raises((ValueError, TypeError)):
        otlp.attribute("name", value)


@pytest.mark.parametrize("trace_id", ["", "0" * 32, "xyz", "ab", None])
def test_an_invalid_caller_is_replaced_by_a_trace_of_our_own(trace_id):
    ids = otlp.request_ids("run-1", "a", trace_id)
    assert ids == otlp.request_ids("run-1", "a", None)
    assert len(ids.trace_id) == 16
    assert len(ids.span_id) == 8


def test_the_store_and_the_collector_agree(store, tmp_path, make, collector):
    """C20 kind: rows and spans of one run reconcile."""
    make.write_frames(tmp_path, make.story(7, 3))
    make.drain(store, tmp_path)
    ship(store, tmp_path, collector.url, make)
    assert len(make.rows(store, engine_runs)) == 1
    assert len(make.rows(store, plans)) == len([span for span in collector.spans if span.name == "helios.plan"])
    servers = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert len(make.rows(store, requests)) == len(servers)
