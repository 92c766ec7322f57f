"""What the environment says about who sends spans."""

from __future__ import annotations

from otlp_receiver import attributes

from service.telemetry.otlp import resource
from service.telemetry.sdk_resource import environment_attributes


def test_an_instance_is_its_run_unless_the_environment_says_otherwise(monkeypatch):
    def instance() -> str:
        return attributes(resource("run-1", {}, environment_attributes()))["service.instance.id"]

    assert instance() == "run-1"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-7")
    assert instance() == "pod-7"
