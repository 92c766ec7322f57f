"""The collector that --otlp-endpoint and the standard's variables name."""

from __future__ import annotations

import pytest

from service.telemetry.exporter_settings import ExporterSettings, environment_problem, exporter_settings

BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}
PREFIX = "OTEL_EXPORTER_OTLP_"


@pytest.mark.parametrize(
    ("endpoint", "environment", "url"),
    [
        (None, {}, None),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None),
        ("http://a:1", {}, "http://a:1/v1/traces"),
        ("http://a:1/v1/traces/", {}, "http://a:1/v1/traces"),
        ("http://a:1", BASE, "http://a:1/v1/traces"),
        (None, BASE, "http://collector:4318/v1/traces"),
        (None, {**BASE, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://b/x"}, "https://b/x"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"}, None),
        (None, {**BASE, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "b:99999"}, "http://collector:4318/v1/traces"),
        (None, {"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4318/v1/traces"),
        (None, {**BASE, "OTEL_TRACES_EXPORTER": "console, otlp"}, "http://collector:4318/v1/traces"),
        ("http://a:1", {"OTEL_TRACES_EXPORTER": "none"}, None),
        (None, {**BASE, "OTEL_TRACES_EXPORTER": "None"}, None),
        ("http://a:1", {"OTEL_SDK_DISABLED": "TRUE"}, None),
        (None, {**BASE, "OTEL_SDK_DISABLED": "0"}, "http://collector:4318/v1/traces"),
    ],
)
def test_the_option_goes_before_the_variables_and_a_switch_before_both(endpoint, environment, url):
    found = exporter_settings(endpoint, environment)
    assert (None if found is None else found.url) == url


def test_what_is_not_set_has_defaults():
    assert exporter_settings("http://a:1", {}) == ExporterSettings("http://a:1/v1/traces", {}, "gzip", 10.0)


def test_the_variables_of_traces_go_before_those_of_all_signals():
    names = ("HEADERS", "COMPRESSION", "TIMEOUT", "CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
    common = dict(zip(names, ("a=1", "deflate", "5", "ca", "crt", "key"), strict=True))
    own = dict(zip(names, ("b=2,c=d%20e", "none", "2.5", "ca2", "crt2", "key2"), strict=True))
    environment = {PREFIX + name: value for name, value in common.items()}
    expected = ExporterSettings("http://a:1/v1/traces", {"a": "1"}, "deflate", 5.0, "ca", "crt", "key")
    assert exporter_settings("http://a:1", environment) == expected
    environment |= {f"{PREFIX}TRACES_{name}": value for name, value in own.items()}
    expected = ExporterSettings("http://a:1/v1/traces", {"b": "2", "c": "d e"}, "none", 2.5, "ca2", "crt2", "key2")
    assert exporter_settings("http://a:1", environment) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("COMPRESSION", "brotli"), ("TIMEOUT", "soon"), ("TIMEOUT", "-1"), ("TIMEOUT", "nan"), ("PROTOCOL", "grpc")],
)
def test_a_value_that_cannot_be_used_is_said_and_left_out(caplog, name, value):
    assert exporter_settings("http://a:1", {PREFIX + name: value}) == exporter_settings("http://a:1", {})
    assert value in caplog.text
    assert f"OTEL_EXPORTER_OTLP_{name}" in caplog.text


@pytest.mark.parametrize("value", ["", "tracecontext,baggage", "none", "b3,none"])
def test_propagators_that_are_there_are_no_problem(value):
    assert environment_problem({"OTEL_PROPAGATORS": value}) is None


@pytest.mark.parametrize("value", ["many", "-1", "1.5", "1" * 5000])
def test_a_limit_that_is_no_number_is_named(value):
    """The SDK raises at import."""
    problem = environment_problem({"OTEL_SPAN_LINK_COUNT_LIMIT": value})
    assert problem == f"OTEL_SPAN_LINK_COUNT_LIMIT must be a whole number of at most 15 digits, not {value[:40]!r}"
    assert environment_problem({"OTEL_SPAN_LINK_COUNT_LIMIT": "7"}) is None


@pytest.mark.parametrize("signal", ["", "TRACES_"])
def test_a_credential_provider_that_is_not_installed_is_named(signal):
    """The SDK's exporter raises."""
    name = f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{signal}CREDENTIAL_PROVIDER"
    assert environment_problem({name: "bogus"}) == f"{name} names 'bogus', which is not installed"


def test_a_propagator_that_is_not_installed_is_named():
    assert "'jaegerish'" in environment_problem({"OTEL_PROPAGATORS": "tracecontext, jaegerish"})


@pytest.mark.parametrize("value", ["%E2%82%AC", "s3cret%0Aevil", "%00", "a%7F", "%C2%9B"])
def test_a_header_that_http_cannot_carry_is_left_out_and_its_value_not_said(caplog, value):
    found = exporter_settings("http://c", {"OTEL_EXPORTER_OTLP_HEADERS": f"x={value},good=a%20b%C3%A9"})
    assert found.headers == {"good": "a bé"}
    assert "'x'" in caplog.text
    assert "s3cret" not in caplog.text
