"""Which spans the SDK's samplers let through, asked about records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from service.journal.records import RequestArrived
from service.telemetry.sampling import SpanSampler, configured_sampler
from service.telemetry.span_ids import plan_ids, request_ids

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLERS = (None, 0, 1)


def arrived(flags: int | None, request_id: str = "a") -> RequestArrived:
    """`flags`: of its caller; None: it has none."""
    caller = (None, None) if flags is None else (TRACE, PARENT)
    return RequestArrived(request_id, "m", 1, 1, 1, 1, None, *caller, "chat", 1 if flags is None else flags)


def takes(sampler: SpanSampler, record: RequestArrived) -> bool:
    ids = request_ids("run", record.request_id, record.trace_id)
    return sampler.takes_request(ids, record, "chat m")


@pytest.fixture
def sampler(monkeypatch):
    def configured(name: str | None, argument: str | None = None) -> SpanSampler:
        for variable, value in (("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)):
            if value is None:
                monkeypatch.delenv(variable, raising=False)
            else:
                monkeypatch.setenv(variable, value)
        return configured_sampler()

    return configured


@pytest.mark.parametrize(
    ("name", "argument", "requests", "roots"),
    [
        (None, None, (True, False, True), True),
        ("always_on", None, (True, True, True), True),
        ("always_off", None, (False, False, False), False),
        ("parentbased_always_on", None, (True, False, True), True),
        ("parentbased_always_off", None, (False, False, True), False),
        ("traceidratio", "1.0", (True, True, True), True),
        ("traceidratio", "0.0", (False, False, False), False),
        ("parentbased_traceidratio", "0", (False, False, True), False),
        ("parentbased_traceidratio", "1", (True, False, True), True),
        ("unheard_of", None, (True, False, True), True),
    ],
)
def test_each_sampler_decides_as_the_standard_says(sampler, name, argument, requests, roots):
    chosen = sampler(name, argument)
    assert tuple(takes(chosen, arrived(flags)) for flags in CALLERS) == requests
    assert chosen.takes_root(plan_ids("run", 1), "helios.plan") is roots


def test_a_ratio_takes_about_its_share_of_plans_and_of_requests(sampler):
    chosen = sampler("parentbased_traceidratio", "0.25")
    plans = sum(chosen.takes_root(plan_ids("run", fence), "helios.plan") for fence in range(4000))
    requests = sum(takes(chosen, arrived(None, f"r{number}")) for number in range(4000))
    assert 850 < plans < 1150
    assert 850 < requests < 1150


@given(flags=st.integers(0, 255))
def test_only_the_lowest_bit_of_the_callers_flags_counts(flags):
    chosen = configured_sampler()
    assert takes(chosen, arrived(flags)) is bool(flags & 1)


def test_without_a_sampler_everything_is_sent():
    assert all(takes(SpanSampler(), arrived(flags)) for flags in CALLERS)
    assert SpanSampler().takes_root(plan_ids("run", 1), "helios.plan")


def test_a_sampler_is_told_what_the_request_is():
    class Asking(Sampler):
        def __init__(self):
            self.asked = []

        def should_sample(
            self, parent_context, trace_id, name, kind=None, attributes=None, links=None, trace_state=None
        ):
            self.asked.append((trace_id, name, dict(attributes), trace_state and trace_state.to_header()))
            return SamplingResult(Decision.RECORD_ONLY)

        def get_description(self):
            return "Asking"

    asking = Asking()
    record = RequestArrived("a", "m", 1, 1, 1, 1, None, TRACE, PARENT, "chat", 1, "k=v")
    assert takes(SpanSampler(asking), record) is False  # recorded only is not sampled
    named = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    assert asking.asked == [(int(TRACE, 16), "chat m", named, "k=v")]
