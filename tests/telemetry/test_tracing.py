"""The service's own spans on their way to a collector."""

from __future__ import annotations

import pytest
from otlp_receiver import Answer, OtlpReceiver, attributes

from service.settings import Settings
from service.telemetry.exporter_settings import ExporterSettings
from service.telemetry.otlp import SCHEMA_URL
from service.telemetry.sdk_resource import environment_attributes
from service.telemetry.tracing import Tracing, start_tracing


@pytest.fixture
def receiver():
    made = OtlpReceiver()
    yield made
    made.close()


def settings(tmp_path, **changes) -> Settings:
    return Settings(data_dir=str(tmp_path), database="", threads=1, **changes)


def test_spans_arrive_with_what_the_environment_says(receiver, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,team=a%20b")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k")
    tracing = start_tracing(settings(tmp_path, otlp_endpoint=receiver.url))
    tracing.tracer.start_span("one").end()
    tracing.stop(10.0)
    (request,) = receiver.requests
    (item,) = request.resource_spans
    who = attributes(item.resource)
    expected = {"service.name": "chat", "deployment.environment.name": "test", "team": "a b"}
    assert who.items() >= {**expected, "telemetry.sdk.name": "opentelemetry"}.items()
    assert who["service.version"]
    assert item.scope_spans[0].schema_url == SCHEMA_URL
    assert [span.name for span in receiver.spans] == ["one"]
    assert receiver.headers[0]["content-encoding"] == "gzip"
    assert receiver.headers[0]["api-key"] == "k"


def test_the_resource_without_an_environment_is_helios(receiver, tmp_path):
    tracing = start_tracing(settings(tmp_path, otlp_endpoint=receiver.url))
    tracing.tracer.start_span("one").end()
    tracing.stop(10.0)
    assert attributes(receiver.requests[0].resource_spans[0].resource)["service.name"] == "helios"


def test_a_refusal_is_said_once(receiver, tmp_path, caplog):
    receiver.answers = [Answer(status=401), Answer(status=401)]
    tracing = start_tracing(settings(tmp_path, otlp_endpoint=receiver.url))
    for name in ("one", "two"):
        tracing.tracer.start_span(name).end()
        tracing._sdk.force_flush()
    tracing.stop(10.0)
    assert receiver.posts == 2
    said = [record for record in caplog.records if record.name.startswith("opentelemetry.exporter")]
    assert len(said) == 1
    assert "401" in said[0].getMessage()


def test_a_sampler_that_takes_nothing_sends_nothing(receiver, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    tracing = start_tracing(settings(tmp_path, otlp_endpoint=receiver.url))
    tracing.tracer.start_span("one").end()
    tracing.stop(10.0)
    assert receiver.posts == 0


@pytest.mark.parametrize("name", ["OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"])
def test_where_spans_are_switched_off_there_is_no_tracer(receiver, tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "true" if "DISABLED" in name else "none")
    assert start_tracing(settings(tmp_path, otlp_endpoint=receiver.url)).tracer is None
    monkeypatch.undo()
    assert start_tracing(settings(tmp_path)).tracer is None


def test_stopping_does_not_wait_for_a_collector_that_hangs(receiver):
    receiver.answers = [Answer(how="hang")] * 99
    tracing = Tracing(ExporterSettings(f"{receiver.url}/v1/traces", timeout_s=3600.0), {})
    tracing.tracer.start_span("one").end()
    tracing.stop(0.0)  # would wait for an hour otherwise


def test_what_detectors_find_is_turned_into_what_an_attribute_can_hold(monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "name=\udcff,broken")
    monkeypatch.setenv("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "process")
    found = environment_attributes()
    assert found["name"] == "?"
    assert isinstance(found["process.pid"], int)
    assert "service.name" not in found
    assert not [name for name in found if name.startswith("telemetry.sdk.")]


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_BSP_MAX_QUEUE_SIZE": "-1"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "10"},
        {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "9999"},
        {"OTEL_BSP_SCHEDULE_DELAY": "0"},
    ],
)
def test_batches_that_the_sdk_refuses_are_said_and_are_the_usual_ones(receiver, monkeypatch, caplog, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tracing = Tracing(ExporterSettings(f"{receiver.url}/v1/traces"), {})
    assert "OTEL_BSP_" in caplog.text
    tracing.tracer.start_span("one").end()
    tracing.stop(10.0)
    assert [span.name for span in receiver.spans] == ["one"]
