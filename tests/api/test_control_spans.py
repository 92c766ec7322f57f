"""Calls of the control API as spans, made with the SDK and looked at in memory."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from fake_engine import serving
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from waiting import wait_until

from service.api.control_spans import CALL_ATTRIBUTES
from service.control.errors import StalePolicy
from service.control.policy import PROPOSAL_ATTRIBUTES, PROPOSAL_SPAN, PolicyControl, resolve_initial_policy
from service.settings import Settings
from service.store.database import open_database

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture(scope="module")
def exporter():
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def tracer(exporter):
    provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("tests")


@pytest.fixture(scope="module")
def traced_api(tracer, _sqlite_template, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spans")
    shutil.copy(_sqlite_template, folder / "helios.db")
    url = f"sqlite:///{folder / 'helios.db'}"
    store = open_database(url)
    resolve_initial_policy(store, Settings(data_dir=str(folder), database=url, threads=1))
    with serving(store, folder, tracer=tracer) as api:
        yield api
    store.dispose()


@pytest.fixture
def spans(exporter):
    """A call's span ends a moment after its answer has arrived: waits for so many of them."""
    exporter.clear()

    def ended(count):
        wait_until(lambda: len(exporter.get_finished_spans()) >= count, f"{count} spans")
        return exporter.get_finished_spans()

    return ended


def test_a_change_is_a_span_of_the_call_in_the_callers_trace_and_one_of_the_proposal_under_it(traced_api, spans):
    etag = traced_api.http.get("/api/policy").headers["etag"]
    body = {"coefficients": {"token_fairness": 3.5}, "actor": "anna"}
    answer = traced_api.http.put("/api/policy", json=body, headers={"If-Match": etag, **CALLER})
    assert answer.status_code == 200
    _, proposal, call = spans(3)
    assert (call.name, call.kind) == ("PUT /api/policy", SpanKind.SERVER)
    assert f"{call.context.trace_id:032x}" == TRACE
    assert f"{call.parent.span_id:016x}" == PARENT
    assert dict(call.attributes) == {
        "http.request.method": "PUT", "http.route": "/api/policy", "url.path": "/api/policy", "url.scheme": "http",
        "http.response.status_code": 200,
    }  # fmt: skip
    assert proposal.name == PROPOSAL_SPAN
    assert proposal.parent.span_id == call.context.span_id
    assert tuple(proposal.attributes) == PROPOSAL_ATTRIBUTES
    assert proposal.attributes["helios.policy.actor"] == "anna"
    assert proposal.attributes["helios.policy.version"] == answer.json()["version"]


def test_a_stale_change_is_an_error_of_the_proposal_and_not_of_the_server(traced_api, spans):
    traced_api.http.put("/api/policy", json={"preset": "throughput"}, headers={"If-Match": '"99"'})
    proposal, call = spans(2)
    assert (call.attributes["http.response.status_code"], call.status.status_code) == (409, StatusCode.UNSET)
    assert proposal.status.status_code == StatusCode.ERROR
    assert "StalePolicy" in proposal.status.description


@pytest.mark.parametrize(
    ("path", "name"),
    [("/api/plans?limit=1", "GET /api/plans"), ("/api/plans/run/1", "GET /api/plans/{run}/{fence}"),
     ("/api/requests", "GET /api/requests")],
)  # fmt: skip
def test_a_span_is_named_by_its_route_and_not_by_its_path(traced_api, spans, path, name):
    traced_api.http.get(path)
    (call,) = spans(1)
    assert call.name == name
    assert set(call.attributes) <= set(CALL_ATTRIBUTES)
    assert call.parent is None


@pytest.mark.parametrize("path", ["/health/ready", "/health/live", "/v1/models", "/metrics", "/"])
def test_what_is_polled_and_inference_have_no_span_here(traced_api, spans, path):
    traced_api.http.get(path)
    traced_api.complete()
    traced_api.http.get("/api/runs")
    assert [call.name for call in spans(1)] == ["GET /api/runs"]


def test_a_failure_of_the_server_is_an_error(traced_api, spans, monkeypatch):
    async def broken(*_arguments, **_more):
        raise RuntimeError("gone")

    monkeypatch.setattr(traced_api.app.state.context.control, "current", broken)
    assert traced_api.http.get("/api/policy").status_code == 500
    (call,) = spans(1)
    assert (call.status.status_code, call.attributes["error.type"]) == (StatusCode.ERROR, "500")


def test_a_change_that_no_call_made_is_a_span_too(store, tmp_path, tracer, spans):
    """The dashboard's."""
    resolve_initial_policy(store, Settings(data_dir=str(tmp_path), database=str(store.url), threads=1))

    async def apply(version, coefficients, *, withdraws=None):
        return 7

    control = PolicyControl(store, apply, tracer=tracer)
    with pytest.raises(StalePolicy):
        asyncio.run(control.change(expected_version=42, actor="anna"))
    (proposal,) = spans(1)
    assert (proposal.name, proposal.parent) == (PROPOSAL_SPAN, None)
