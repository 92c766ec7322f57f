"""What a scrape shows, whatever was written, whoever writes meanwhile, and whatever became of the files."""

from __future__ import annotations

import math
import signal
import struct
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from service.telemetry import shared
from service.telemetry.metric_table import STORED, Metric, MetricType, Owner
from service.telemetry.render import render
from service.telemetry.shared import MetricsReader, MetricsWriter, series_exemplars, series_values

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
SERIES = [(metric, values) for metric in STORED for values in metric.series()]
FILES = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def paths(tmp_path):
    return tmp_path / "engine.metrics", tmp_path / "recorder.metrics"


def families(text: bytes, openmetrics: bool):
    return list((parse_openmetrics if openmetrics else parse_text)(text.decode()))


def update(writer: MetricsWriter, metric: Metric, values: tuple[str, ...], number: float) -> None:
    if metric.type is MetricType.COUNTER:
        writer.counter(metric.name, *values).inc(number)
    elif metric.traced:
        histogram = writer.traced_histogram(metric.name, *values)
        bucket = histogram.observe(number, 0)
        if bucket is not None:
            histogram.keep(bucket, number, 0, bytes(range(16)))
    elif metric.type is MetricType.HISTOGRAM:
        writer.histogram(metric.name, *values).observe(number)
    else:
        writer.gauge(metric.name, *values).set(number)


def check(text: bytes, openmetrics: bool) -> None:
    """Every number is finite, and buckets only rise to their count."""
    for family in families(text, openmetrics):
        highest: dict[tuple, float] = {}
        for sample in family.samples:
            assert math.isfinite(sample.value), sample
            series = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
            if sample.name.endswith("_bucket"):
                assert sample.value >= highest.get(series, 0.0)
                highest[series] = sample.value
            elif sample.name.endswith("_count"):
                assert sample.value == highest[series]


@FILES
@given(st.lists(st.tuples(st.sampled_from(SERIES), ANY_FLOAT), max_size=60), st.booleans())
def test_whatever_is_written_a_scrape_shows_numbers(paths, updates, openmetrics):
    with MetricsWriter(paths[0]) as engine, MetricsWriter(paths[1]) as recorder:
        for (metric, values), number in updates:
            update(engine if metric.owner is Owner.ENGINE else recorder, metric, values, number)
        check(render(*paths, model="m", exemplars=openmetrics), openmetrics)
        for path in paths:
            assert all(map(math.isfinite, MetricsReader(path).read().slots))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_gauge_takes_what_is_no_number(paths, number):
    with MetricsWriter(paths[0]) as writer:
        gauge = writer.gauge("flare_oldest_wait_seconds")
        gauge.set(3.0)
        gauge.set(number)
        snapshot = MetricsReader(paths[0]).read()
        assert not any(snapshot.slots)


@FILES
@given(st.lists(st.tuples(st.integers(0, shared.FILE_BYTES // 8), ANY_FLOAT), max_size=40), st.booleans())
def test_whatever_lies_behind_the_header_a_scrape_shows_numbers(paths, junk, openmetrics):
    """A file that claims to be the engine's, and is damaged: NaN, infinities and negative counts may lie in it."""
    with MetricsWriter(paths[0]) as writer:
        writer.heartbeat(2**62)  # fresh, so that gauges are shown too
        with paths[0].open("r+b") as file:
            for place, number in junk:
                file.seek(min(max(8 * place, shared.HEADER_BYTES), shared.FILE_BYTES - 8))
                file.write(struct.pack("=d", number))
        for family in families(render(*paths, model="m", exemplars=openmetrics), openmetrics=False):
            assert all(math.isfinite(sample.value) for sample in family.samples)


@FILES
@given(st.one_of(st.binary(max_size=200), st.integers(0, shared.FILE_BYTES - 1)))
def test_a_file_that_is_cut_off_or_somebody_elses_is_absent(paths, content):
    """Cut off at some length, or other bytes altogether."""
    with MetricsWriter(paths[0]):
        whole = paths[0].read_bytes()
    foreign = paths[0].with_name("other.metrics")
    foreign.write_bytes(content if isinstance(content, bytes) else whole[:content])
    assert MetricsReader(foreign).read(exemplars=True) is None
    text = render(foreign, foreign, model="m")
    check(text, openmetrics=False)
    assert b"\nflare_engine_up 0.0\n" in text


@pytest.mark.parametrize("pid", [-(2**62), -1, 0, 2**31, 2**62])
def test_a_writer_that_no_process_can_be_is_dead(paths, pid):
    with MetricsWriter(paths[0]):
        content = bytearray(paths[0].read_bytes())
        struct.pack_into("=q", content, 40, pid)
        other = paths[0].with_name("other.metrics")
        other.write_bytes(content)
        assert MetricsReader(other).read() is None


def test_a_directory_in_its_place_is_absent(paths):
    paths[0].mkdir()
    assert MetricsReader(paths[0]).read() is None
    assert b"\nflare_engine_up 0.0\n" in render(*paths)


def test_two_processes_that_render_the_same_files_say_the_same(paths):
    script = (
        "import sys; from service.telemetry.render import render;"
        "sys.stdout.buffer.write(render(sys.argv[1], sys.argv[2], model='m'))"
    )
    with MetricsWriter(paths[0]) as engine, MetricsWriter(paths[1]) as recorder:
        for number, (metric, values) in enumerate(SERIES):
            update(engine if metric.owner is Owner.ENGINE else recorder, metric, values, number / 7)
        other = subprocess.run([sys.executable, "-c", script, *map(str, paths)], capture_output=True, check=True)
        assert other.stdout == render(*paths, model="m")


WRITER = """
import sys
from service.telemetry.metric_table import STORED, MetricType
from service.telemetry.series import EXEMPLAR_NS
from service.telemetry.shared import MetricsWriter

writer = MetricsWriter(sys.argv[1])
kinds = {MetricType.GAUGE: writer.gauge, MetricType.INFO: writer.gauge, MetricType.COUNTER: writer.counter}
series = {kind: [] for kind in kinds}
for metric in STORED:
    for values in metric.series() if metric.type in kinds else ():
        series[metric.type].append(kinds[metric.type](metric.name, *values))
seconds = writer.traced_histogram("flare_request_seconds")
print("writing", flush=True)
number = 0
while True:
    number += 1
    value = (1.0, -3.9999999999999996)[number % 2]  # no byte of one is a byte of the other
    for gauge in series[MetricType.GAUGE]:
        gauge.set(value)
    for counter in series[MetricType.COUNTER]:
        counter.inc()
    told = number % 97 + 0.25
    seconds.keep(seconds.observe(told, number * EXEMPLAR_NS), told, number * EXEMPLAR_NS, number.to_bytes(16))
"""


def test_a_scrape_while_everything_is_written_sees_whole_numbers_that_never_go_back(paths):
    """In another process, so that the reading really falls between two stores of the writing."""
    writing = subprocess.Popen([sys.executable, "-c", WRITER, str(paths[0])], stdout=subprocess.PIPE, text=True)
    try:
        assert writing.stdout.readline() == "writing\n"
        before: dict[tuple, float] = {}
        traced = next(metric for metric in STORED if metric.name == "flare_request_seconds")
        seen = set()
        while len(seen) < 200:  # however much of the machine the writer gets
            snapshot = MetricsReader(paths[0]).read(exemplars=True)
            for metric, values in SERIES:
                numbers = series_values(metric, values, snapshot.slots)
                if metric.type is MetricType.GAUGE:
                    assert numbers[0] in (0.0, 1.0, -3.9999999999999996)
                elif metric.type is MetricType.COUNTER:
                    assert numbers[0] >= before.get((metric.name, values), 0.0)
                    before[metric.name, values] = numbers[0]
            for exemplar in series_exemplars(traced, (), snapshot.exemplars):
                if exemplar is not None:
                    assert int(exemplar.trace_id, 16) % 97 + 0.25 == exemplar.value
                    seen.add(exemplar.trace_id)
    finally:
        writing.send_signal(signal.SIGKILL)
        writing.wait()
        writing.stdout.close()


def test_a_scrape_while_an_engine_follows_another_sees_one_of_them_or_none(paths):
    """Files are renamed over each other whole: 200 successors while somebody reads without a pause."""
    done = threading.Event()
    wrong: list[float] = []

    def read() -> None:
        while not done.is_set():
            snapshot = MetricsReader(paths[0]).read()
            if snapshot is not None:
                metric = next(m for m in STORED if m.name == "flare_prompt_tokens_total")
                (number,) = series_values(metric, (), snapshot.slots)
                if number not in (0.0, 5.0):
                    wrong.append(number)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        for _ in range(200):
            with MetricsWriter(paths[0]) as writer:
                writer.counter("flare_prompt_tokens_total").inc(5)
    finally:
        done.set()
        reading.join()
    assert not wrong
    assert [path.name for path in paths[0].parent.iterdir()] == ["engine.metrics"]
    assert paths[0].stat().st_size == shared.FILE_BYTES
