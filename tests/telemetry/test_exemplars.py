"""Exemplars: one trace for each bucket, replaced once a second at the most, never a mixture of two."""

from __future__ import annotations

import bisect
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from service.telemetry.metric_table import EXEMPLAR_WORD_COUNT, METRIC_BY_NAME, STORED, exemplar_offsets
from service.telemetry.render import render
from service.telemetry.series import EXEMPLAR_NS, EXEMPLAR_WORDS, TracedHistogram, read_exemplar
from service.telemetry.shared import MetricsReader, MetricsWriter, UnknownSeries, series_exemplars, series_values

BOUNDS = (0.5, 1.0, 4.0)
TRACES = st.binary(min_size=16, max_size=16)
VALUES = st.floats(allow_nan=True, allow_infinity=True)


def words_and_histogram() -> tuple[memoryview, TracedHistogram]:
    slots = memoryview(bytearray(8 * (len(BOUNDS) + 2))).cast("d")
    words = memoryview(bytearray(8 * EXEMPLAR_WORDS * (len(BOUNDS) + 1))).cast("Q")
    return words, TracedHistogram(slots, 0, BOUNDS, words, 0)


def written(trace_id: bytes, value: float) -> list[int]:
    words, histogram = words_and_histogram()
    histogram.keep(0, value, 0, trace_id)
    return list(words[:EXEMPLAR_WORDS])


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 0.7, 2.0, 9.0, -1.0, float("nan")]), st.integers(0, 3 * 10**9))))
def test_each_bucket_keeps_the_first_observation_of_each_second(steps):
    """The plain twin: walk through the observations and remember, for each bucket, the newest that was due."""
    words, histogram = words_and_histogram()
    kept: dict[int, tuple[int, float, int]] = {}
    now_ns = 0
    for number, (value, pause_ns) in enumerate(steps):
        now_ns += pause_ns
        bucket = histogram.observe(value, now_ns)
        if bucket is not None:
            histogram.keep(bucket, value, now_ns, number.to_bytes(16))
        if value >= 0:
            place = bisect.bisect_left(BOUNDS, value)
            if place not in kept or now_ns >= kept[place][2] + EXEMPLAR_NS:
                kept[place] = number, value, now_ns
    for place in range(len(BOUNDS) + 1):
        found = read_exemplar(words[place * EXEMPLAR_WORDS : (place + 1) * EXEMPLAR_WORDS])
        if place in kept:
            assert found is not None
            assert (int(found.trace_id, 16), found.value) == kept[place][:2]
        else:
            assert found is None


@given(TRACES, TRACES, VALUES, VALUES)
def test_a_reader_never_sees_half_of_one_exemplar_and_half_of_another(old_trace, new_trace, old_value, new_value):
    old, new = written(old_trace, old_value), written(new_trace, new_value)
    whole = [repr(read_exemplar(words)) for words in (old, new)]
    for done in range(EXEMPLAR_WORDS + 1):
        seen = read_exemplar(new[:done] + old[done:])
        assert seen is None or repr(seen) in whole
    assert repr(read_exemplar(new)) == whole[1]
    assert read_exemplar(new)[0] == new_trace.hex()


def test_a_place_that_was_never_written_is_no_exemplar():
    assert read_exemplar([0] * EXEMPLAR_WORDS) is None


def test_the_places_of_exemplars_do_not_overlap_and_fill_the_file():
    first, taken = exemplar_offsets(), []
    for metric in STORED:
        for values in metric.series():
            start = first[metric.name, values]
            taken += range(start, start + metric.exemplar_words)
    assert taken == list(range(EXEMPLAR_WORD_COUNT))


def test_only_traced_histograms_take_traces(tmp_path):
    with MetricsWriter(tmp_path / "engine.metrics") as writer:
        for name, labels in (("flare_speculative_accepted_length", ("copy",)), ("flare_requests_total", ("stop",))):
            with pytest.raises(UnknownSeries):
                writer.traced_histogram(name, *labels)


@pytest.fixture
def paths(tmp_path):
    """An engine with one observation in some buckets of every traced histogram, and no recorder."""
    paths = tmp_path / "engine.metrics", tmp_path / "recorder.metrics"
    with MetricsWriter(paths[0]) as writer:
        for number, metric in enumerate(metric for metric in STORED if metric.traced):
            for values in metric.series():
                histogram = writer.traced_histogram(metric.name, *values)
                for value in (0.0, 0.002, 0.3, 1e9):
                    bucket = histogram.observe(value, 0)
                    if bucket is not None:
                        histogram.keep(bucket, value, 0, struct.pack(">QQ", number + 1, 7))
        yield paths


def test_openmetrics_shows_every_exemplar_in_its_bucket_and_plain_text_none(paths):
    text = render(*paths, model="m", exemplars=True).decode()
    shown = 0
    for family in parse_openmetrics(text):
        below: dict[tuple, float] = {}
        for sample in family.samples:
            if sample.exemplar is None:
                continue
            series = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
            assert below.get(series, -1.0) < sample.exemplar.value <= float(sample.labels["le"])
            below[series] = float(sample.labels["le"])
            assert set(sample.exemplar.labels) == {"trace_id"}
            assert len(sample.exemplar.labels["trace_id"]) == 32
            shown += 1
    snapshot = MetricsReader(paths[0]).read(exemplars=True)
    kept = [
        exemplar
        for metric in STORED
        if metric.traced
        for values in metric.series()
        for exemplar in series_exemplars(metric, values, snapshot.exemplars)
        if exemplar is not None
    ]
    assert shown == len(kept) > 3 * sum(metric.traced for metric in STORED)
    assert b" # {" not in render(*paths, model="m")


def test_both_forms_say_the_same_numbers(paths):
    def numbers(families) -> dict:
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    plain = numbers(parse_text(render(*paths, model="m").decode()))
    assert numbers(parse_openmetrics(render(*paths, model="m", exemplars=True).decode())) == plain
    assert len(plain) > 1000


def test_without_being_asked_a_reader_does_not_look_at_exemplars(paths):
    snapshot = MetricsReader(paths[0]).read()
    assert snapshot.exemplars == ()
    assert series_values(METRIC_BY_NAME["flare_request_seconds"], (), snapshot.slots)[-1] == pytest.approx(1e9 + 0.302)
