"""The shared-memory counters and their exposition."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from service.telemetry import metric_table, shared
from service.telemetry.metric_table import STORED, MetricType, Owner
from service.telemetry.render import STALE_AFTER_NS, render
from service.telemetry.shared import MetricsReader, MetricsUnavailable, MetricsWriter, UnknownSeries


@pytest.fixture
def paths(tmp_path):
    return tmp_path / "engine.metrics", tmp_path / "recorder.metrics"


def samples(text: bytes) -> dict[tuple[str, frozenset], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(text: bytes, name: str, **labels: str) -> float:
    return samples(text)[name, frozenset(labels.items())]


def test_what_is_written_is_what_a_reader_sees(paths):
    writer = MetricsWriter(paths[0])
    writer.counter("flare_requests_total", "stop").inc(3)
    writer.gauge("flare_requests_running").set(7)
    text = render(*paths)
    assert value(text, "flare_requests_total", outcome="stop") == 3
    assert value(text, "flare_requests_total", outcome="abort") == 0
    assert value(text, "flare_requests_running") == 7


def test_every_counter_and_histogram_series_exists_at_zero_before_any_engine_ran(paths):
    found = samples(render(*paths))
    for metric in STORED:
        for values in metric.series():
            labels = dict(zip(metric.label_names, (*values, *("" for _ in metric.served)), strict=True))
            if metric.type is MetricType.COUNTER:
                assert found[metric.name, frozenset(labels.items())] == 0
            elif metric.type is MetricType.HISTOGRAM:
                assert found[metric.name + "_count", frozenset(labels.items())] == 0


def test_a_dead_engine_is_down_without_stale_gauges(paths):
    script = (
        "import sys; from service.telemetry.shared import MetricsWriter; w = MetricsWriter(sys.argv[1]);"
        "w.gauge('flare_engine_up').set(1); w.gauge('flare_requests_running').set(5);"
        "w.counter('flare_requests_total', 'stop').inc(9); import os; os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(paths[0])], check=True)
    text = render(*paths)
    assert value(text, "flare_engine_up") == 0
    assert value(text, "flare_requests_total", outcome="stop") == 0
    assert not any(name == "flare_requests_running" for name, _ in samples(text))


def test_a_reused_process_id_is_not_taken_for_the_writer(paths, monkeypatch):
    writer = MetricsWriter(paths[0])
    assert MetricsReader(paths[0]).read() is not None
    monkeypatch.setattr(shared, "_start_ticks", lambda pid: 1)
    assert MetricsReader(paths[0]).read() is None
    writer.close()


def test_an_engine_that_stopped_moving_keeps_its_counters_and_loses_its_gauges(paths):
    writer = MetricsWriter(paths[0])
    writer.gauge("flare_engine_up").set(1)
    writer.gauge("flare_requests_running").set(2)
    writer.counter("flare_output_tokens_total").inc(5)
    writer.heartbeat(1_000)
    fresh = render(*paths, clock=lambda: STALE_AFTER_NS)
    stale = render(*paths, clock=lambda: 1_000 + STALE_AFTER_NS)
    assert value(fresh, "flare_engine_up") == 1
    assert value(stale, "flare_engine_up") == 0
    assert value(stale, "flare_output_tokens_total") == 5
    assert ("flare_requests_running", frozenset()) not in samples(stale)


def test_a_file_of_another_table_is_absent(paths, monkeypatch):
    writer = MetricsWriter(paths[0])
    monkeypatch.setattr(shared, "table_digest", lambda: b"x" * 32)
    assert MetricsReader(paths[0]).read() is None
    writer.close()


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 100_000])
def test_a_damaged_file_is_absent(paths, content):
    paths[0].write_bytes(content)
    assert MetricsReader(paths[0]).read() is None
    assert value(render(*paths), "flare_engine_up") == 0


def test_a_closed_writer_leaves_an_absent_file(paths):
    writer = MetricsWriter(paths[0])
    writer.close()
    writer.close()
    assert MetricsReader(paths[0]).read() is None


def test_a_new_run_starts_its_counters_at_zero_and_replaces_the_file_whole(paths):
    first = MetricsWriter(paths[0])
    first.counter("flare_prompt_tokens_total").inc(10)
    second = MetricsWriter(paths[0])
    second.counter("flare_prompt_tokens_total").inc(1)
    assert value(render(*paths), "flare_prompt_tokens_total") == 1
    assert [p.name for p in paths[0].parent.iterdir()] == ["engine.metrics"]
    first.close()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_numbers_that_would_spoil_a_series_are_ignored(paths, bad):
    writer = MetricsWriter(paths[0])
    writer.counter("flare_output_tokens_total").inc(bad)
    writer.histogram("flare_request_seconds").observe(bad)
    text = render(*paths)
    assert value(text, "flare_output_tokens_total") == 0
    assert value(text, "flare_request_seconds_count") == 0
    assert value(text, "flare_request_seconds_sum") == 0


def test_a_gauge_set_to_nan_reads_zero(paths):
    MetricsWriter(paths[0]).gauge("flare_device_busy_ratio").set(math.nan)
    assert value(render(*paths), "flare_device_busy_ratio") == 0


def test_histograms_are_cumulative_and_their_count_is_the_sum_of_their_buckets(paths):
    histogram = MetricsWriter(paths[0]).histogram("flare_inter_token_seconds")
    for gap in (0.0001, 0.0005, 0.002, 0.0021, 1e9):
        histogram.observe(gap)
    text = render(*paths)
    assert value(text, "flare_inter_token_seconds_bucket", le="0.0005") == 2
    assert value(text, "flare_inter_token_seconds_bucket", le="0.002") == 3
    assert value(text, "flare_inter_token_seconds_bucket", le="+Inf") == 5
    assert value(text, "flare_inter_token_seconds_count") == 5


@pytest.mark.parametrize("gap", [0.0007, 0.002, 0.0021, 0.013, 0.09])
def test_a_median_gap_read_from_the_buckets_is_within_thirty_percent(paths, gap):
    histogram = MetricsWriter(paths[0]).histogram("flare_inter_token_seconds")
    for _ in range(100):
        histogram.observe(gap)
    text = render(*paths)
    bounds = [0.0, *metric_table.GAP_BUCKETS]
    counts = [0.0] + [value(text, "flare_inter_token_seconds_bucket", le=repr(b)) for b in bounds[1:]]
    at = next(i for i, count in enumerate(counts) if count >= 50)
    estimate = bounds[at - 1] + (bounds[at] - bounds[at - 1]) * (50 - counts[at - 1]) / (counts[at] - counts[at - 1])
    assert abs(estimate - gap) / gap < 0.3


def test_an_undeclared_series_is_refused(paths):
    writer = MetricsWriter(paths[0])
    for call in (
        lambda: writer.counter("flare_no_such_total"),
        lambda: writer.counter("flare_requests_total", "exploded"),
        lambda: writer.counter("flare_requests_total"),
        lambda: writer.gauge("flare_requests_total", "stop"),
    ):
        with pytest.raises(UnknownSeries):
            call()


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(MetricsUnavailable, match="file"):
        MetricsWriter(blocker / "engine.metrics")


def test_recorder_series_come_from_the_recorders_file(paths):
    MetricsWriter(paths[0]).counter("flare_trace_records_total", "sql").inc(100)
    MetricsWriter(paths[1]).counter("flare_trace_records_total", "sql").inc(7)
    assert value(render(*paths), "flare_trace_records_total", sink="sql") == 7


def test_the_services_own_series_are_in_the_same_exposition(paths):
    registry = CollectorRegistry()
    Counter("flare_http_requests", "Requests.", registry=registry).inc(4)
    assert value(render(*paths, registry), "flare_http_requests_total") == 4


def test_the_policy_info_series_shows_only_the_names_in_use(paths):
    MetricsWriter(paths[0]).gauge("flare_scheduler_policy_info", "measured", "deprived", "on", "prefix").set(1)
    found = [labels for name, labels in samples(render(*paths)) if name == "flare_scheduler_policy_info"]
    names = {("prefill_chunking", "measured"), ("newcomer_memory", "deprived"), ("decode_cadence", "on")}
    names.add(("acceptance_model", "prefix"))
    assert found == [frozenset(names)]


def test_the_series_do_not_overlap_and_fill_the_file():
    taken = [
        slot
        for (name, _), first in metric_table.slot_offsets().items()
        for slot in range(first, first + metric_table.METRIC_BY_NAME[name].slots)
    ]
    assert sorted(taken) == list(range(metric_table.SLOT_COUNT))
    assert {m.owner for m in STORED} == {Owner.ENGINE, Owner.RECORDER}
    assert shared.HEADER_BYTES % os.sysconf("SC_PAGE_SIZE") % 8 == 0


def test_on_a_full_disk_a_dead_writers_file_is_used_again_from_zero(paths, monkeypatch):
    old = MetricsWriter(paths[0])
    old.counter("flare_requests_total", "stop").inc(3)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared, "_create_beside", full)
    with pytest.raises(MetricsUnavailable, match="No space left"):
        MetricsWriter(paths[0])  # its writer lives
    old.close()
    writer = MetricsWriter(paths[0])
    writer.gauge("flare_requests_running").set(7)
    text = render(*paths)
    assert value(text, "flare_requests_total", outcome="stop") == 0
    assert value(text, "flare_requests_running") == 7
