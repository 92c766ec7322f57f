"""Metrics of the worker loop: what moves with each plan, what falls when nothing is done, times and their traces."""

from __future__ import annotations

import collections

import pytest

from service.engine.request_metrics import RequestMetrics
from service.telemetry.metric_table import METRIC_BY_NAME, STORED, Owner
from service.telemetry.series import EXEMPLAR_NS
from service.telemetry.shared import MetricsReader, series_exemplars, series_values
from service.telemetry.span_ids import plan_ids, request_ids

MS = 1_000_000
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def read(rig, name: str, *labels: str) -> tuple[float, ...]:
    return series_values(METRIC_BY_NAME[name], labels, MetricsReader(rig.metrics_path).read().slots)


def traces(rig, name: str, *labels: str) -> set[str]:
    words = MetricsReader(rig.metrics_path).read(exemplars=True).exemplars
    return {found.trace_id for found in series_exemplars(METRIC_BY_NAME[name], labels, words) if found is not None}


def count_and_sum(rig, name: str, *labels: str) -> tuple[float, float]:
    *buckets, total = read(rig, name, *labels)
    return sum(buckets), total


def test_token_counters_move_with_each_plan_and_not_with_each_request(rig):
    rig.submit("a", prompt=70, output=12)
    rig.submit("b", prompt=5, output=9)
    seen = set()
    for _ in range(200):
        rig.step()
        lanes = [lane for done in rig.completions() for lane in done.lanes]
        committed = sum(lane.committed_tokens for lane in lanes)
        assert read(rig, "flare_output_tokens_total") == (committed,)
        assert read(rig, "flare_prompt_tokens_total") == (sum(lane.consumed_prompt_tokens for lane in lanes),)
        assert count_and_sum(rig, "flare_scheduler_plan_seconds")[0] == len(rig.plans())
        seen.add(committed)
        if rig.worker.drained and not len(rig.core.table):
            break
    assert committed == 21
    assert len(seen) > 10


def test_gauges_fall_to_zero_when_nothing_is_done(rig):
    for name in "abc":
        rig.submit(name, prompt=40, output=30)
    rig.step(10)
    rig.clock.advance(600 * MS)
    rig.step()
    busy = ("flare_requests_running", "flare_kv_pages_used", "flare_device_busy_ratio")
    assert all(read(rig, name)[0] > 0 for name in busy)
    rig.settle()
    for _ in range(24):  # the window of the busy share is ten seconds long
        rig.clock.advance(500 * MS)
        rig.step()
    for name in (*busy, "flare_requests_waiting", "flare_oldest_wait_seconds"):
        assert read(rig, name) == (0.0,), name
    for cause in ("disk_full", "over_budget"):
        assert read(rig, "flare_journal_trouble", cause) == (0.0,)


def test_every_series_of_the_engine_is_a_number_from_the_start(rig):
    rig.step()
    slots = MetricsReader(rig.metrics_path).read().slots
    moved = {"flare_engine_up", "flare_scheduler_policy_version", "flare_scheduler_policy", "flare_kv_pages_total"}
    moved |= {"flare_scheduler_policy_info", "flare_graph_estimates"}
    for metric in STORED:
        if metric.owner is Owner.ENGINE and metric.name not in moved:
            for values in metric.series():
                assert not any(series_values(metric, values, slots)), metric.name
    assert series_values(METRIC_BY_NAME["flare_engine_up"], (), slots) == (1.0,)


def test_times_of_requests_are_those_that_the_journal_has(rig):
    rig.clock.advance(5 * MS)
    rig.submit("a", output=6, arrived_ns=rig.clock() - 4 * MS, tokenize_ns=MS)
    rig.submit("b", output=1)
    rig.submit("c", output=40)
    rig.step(6)
    rig.cancel("c")
    rig.settle()
    endings = [rig.ending(name) for name in "abc"]
    arrivals = [rig.arrived(name).arrived_ns for name in "abc"]
    whole = sum(end.finished_ns - at for end, at in zip(endings, arrivals, strict=True)) / 1e9
    assert count_and_sum(rig, "flare_request_seconds") == (3, pytest.approx(whole))
    assert count_and_sum(rig, "flare_queue_seconds") == (3, pytest.approx(sum(end.queue_ns for end in endings) / 1e9))
    published = collections.defaultdict(list)
    plans = {plan.fence: plan for plan in rig.plans()}
    for kind, records in rig.events:
        for record in records if kind == "write" else ():
            if type(record).__name__ == "OutputPublished":
                for lane in record.lanes:
                    published[plans[record.fence].lanes[lane].request_id].append(record.published_ns)
    first = sum(published[name][0] - at for name, at in zip("abc", arrivals, strict=True)) / 1e9
    gaps = sum(times[-1] - times[0] for times in published.values()) / 1e9
    assert count_and_sum(rig, "flare_time_to_first_token_seconds") == (3, pytest.approx(first))
    later = sum(len(times) - 1 for times in published.values())
    assert count_and_sum(rig, "flare_inter_token_seconds") == (later, pytest.approx(gaps))


def test_genai_metrics_count_whole_requests_and_the_pace_of_those_that_succeeded(rig):
    rig.submit("a", output=6)
    rig.submit("b", output=1)
    rig.submit("c", output=40)
    rig.step(6)
    rig.cancel("c")
    rig.settle()
    a, b = rig.ending("a"), rig.ending("b")
    series = ("text_completion", "helios")
    flare = count_and_sum(rig, "flare_request_seconds")
    assert count_and_sum(rig, "gen_ai_server_request_duration_seconds", *series, "") == flare
    first_count, first_sum = count_and_sum(rig, "gen_ai_server_time_to_first_token_seconds", *series)
    assert first_count == 2  # the cancelled one is no success
    count, pace = count_and_sum(rig, "gen_ai_server_time_per_output_token_seconds", *series)
    assert count == 1  # one token alone has no pace
    whole = sum(end.finished_ns - rig.arrived(name).arrived_ns for name, end in (("a", a), ("b", b))) / 1e9
    assert first_sum + 5 * pace <= whole + 1e-9
    assert pace > 0
    assert count_and_sum(rig, "gen_ai_server_request_duration_seconds", "chat", "helios", "") == (0, 0)


def test_a_failed_request_is_an_error_of_the_genai_metrics(rig):
    rig.submit("a", output=9)
    rig.step(3)
    rig.device.error = "boom"
    rig.settle()
    assert rig.ending("a").finish_reason == "error"
    duration = "gen_ai_server_request_duration_seconds"
    assert count_and_sum(rig, duration, "text_completion", "helios", "error")[0] == 1
    assert count_and_sum(rig, duration, "text_completion", "helios", "")[0] == 0
    assert count_and_sum(rig, "gen_ai_server_time_to_first_token_seconds", "text_completion", "helios")[0] == 0


REQUEST_HISTOGRAMS = (
    ("flare_time_to_first_token_seconds",),
    ("flare_inter_token_seconds",),
    ("flare_request_seconds",),
    ("flare_queue_seconds",),
    ("gen_ai_server_request_duration_seconds", "text_completion", "helios", ""),
    ("gen_ai_server_time_to_first_token_seconds", "text_completion", "helios"),
    ("gen_ai_server_time_per_output_token_seconds", "text_completion", "helios"),
)


@pytest.mark.parametrize("traceparent", [None, CALLER])
def test_exemplars_of_requests_are_the_traces_of_their_spans(rig, traceparent):
    rig.submit("a", output=6, traceparent=traceparent)
    rig.settle()
    caller = None if traceparent is None else traceparent.split("-")[1]
    expected = request_ids("run-1", "a", caller).trace_id.hex()
    assert caller is None or expected == caller
    for name, *labels in REQUEST_HISTOGRAMS:
        assert traces(rig, name, *labels) == {expected}, name


def test_exemplars_of_plans_are_the_traces_of_their_spans(rig):
    rig.submit("a", prompt=70, output=6)
    rig.settle()
    known = {plan_ids("run-1", plan.fence).trace_id.hex(): plan for plan in rig.plans()}
    assert traces(rig, "flare_scheduler_plan_seconds") <= known.keys()
    assert traces(rig, "flare_scheduler_plan_seconds")
    kinds = {plan.shape.kind for plan in rig.plans()}
    assert len(kinds) > 1
    for kind in kinds:
        found = traces(rig, "flare_graph_duration_seconds", kind)
        assert found
        assert {known[trace].shape.kind for trace in found} == {kind}


def test_a_bucket_keeps_its_exemplar_for_a_second(rig):
    """The engine computes a trace id once a second for a bucket, however many tokens it hands over."""
    made = []

    class Watched(RequestMetrics):
        def _trace_id(self, request) -> bytes:
            made.append(request.request_id)
            return super()._trace_id(request)

    rig.core.metrics.per_request.__class__ = Watched
    rig.submit("a", output=40)
    rig.settle()
    gap = METRIC_BY_NAME["flare_inter_token_seconds"]
    assert count_and_sum(rig, gap.name)[0] == 39
    used = sum(count > 0 for count in read(rig, gap.name)[:-1])
    passed_s = (rig.clock() - 10**9) // EXEMPLAR_NS + 1
    others = len(REQUEST_HISTOGRAMS) - 1
    assert len(made) <= used * passed_s + others
