"""GET and HEAD /metrics: the forms it takes, what makes a series, and whom a scrape holds up."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gzip
import threading

import httpx
import pytest
from fake_engine import HOLD, MODEL, Api, ids
from hypothesis import example, given
from hypothesis import strategies as st
from litestar.datastructures import Headers
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from service.api.exposition import form_asked
from service.api.http_metrics import HttpMetrics, route_of
from service.api.scrapes import Form, Scrapes
from service.telemetry.render import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE
from service.telemetry.service_metrics import ServiceMetrics

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
OPENMETRICS = "application/openmetrics-text"


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (None, False), ("*/*", False), ("text/plain", False), ("text/html,*/*;q=0.8", False), ("", False),
        (PROMETHEUS_2, True), (PROMETHEUS_3, True), (OPENMETRICS, True), ("Application/OpenMetrics-Text", True),
        (f"{OPENMETRICS};q=0.4,text/plain", False), (f"{OPENMETRICS};q=0", False), (f"{OPENMETRICS};q=often", False),
        (f"text/plain;q=0.4,{OPENMETRICS};q=0.5", True), (f"{OPENMETRICS},*/*", True),
    ],
)  # fmt: skip
def test_openmetrics_is_written_for_who_names_it_and_does_not_like_plain_text_better(accept, openmetrics):
    assert form_asked(Headers({} if accept is None else {"accept": accept})).openmetrics is openmetrics


@pytest.mark.parametrize(
    ("coding", "compressed"),
    [
        (None, False), ("", False), ("identity", False), ("gzip", True), ("deflate, GZIP;q=0.5", True), ("*", True),
        ("gzip;q=0", False), ("gzip;q=0, *", False), ("br", False), ("gzip;q=-1", False),
    ],
)  # fmt: skip
def test_gzip_is_used_where_it_is_accepted(coding, compressed):
    assert form_asked(Headers({} if coding is None else {"accept-encoding": coding})).compressed is compressed


@given(st.text(), st.text())
@example("x;q=inf", "gzip;q=nan")
@example(";;q=", ",,;q")
def test_any_header_gives_some_form(accept, coding):
    assert all(type(part) is bool for part in form_asked(Headers({"accept": accept, "accept-encoding": coding})))


def test_both_forms_come_with_their_content_type_and_length(api: Api):
    plain = api.http.get("/metrics", headers={"accept-encoding": "identity"})
    assert plain.headers["content-type"] == CONTENT_TYPE
    assert plain.headers["vary"] == "Accept, Accept-Encoding"
    assert int(plain.headers["content-length"]) == len(plain.content)
    assert {family.name for family in parse_text(plain.text)} >= {"flare_engine_up", "flare_requests"}
    rich = api.http.get("/metrics", headers={"accept": PROMETHEUS_2})
    assert rich.headers["content-type"] == OPENMETRICS_CONTENT_TYPE
    assert {family.name for family in parse_openmetrics(rich.text)} >= {"flare_engine_up", "flare_requests"}
    assert rich.text.endswith("# EOF\n")


def test_a_compressed_answer_is_the_same_text(api: Api):
    with api.http.stream("GET", "/metrics", headers={"accept-encoding": "gzip"}) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        sent = b"".join(answer.iter_raw())
    assert int(answer.headers["content-length"]) == len(sent) < 20_000
    names = {family.name for family in parse_text(gzip.decompress(sent).decode())}
    assert names == {family.name for family in parse_text(api.http.get("/metrics").text)}


def test_head_answers_the_headers_alone(api: Api):
    answer = api.http.head("/metrics")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == CONTENT_TYPE
    assert api.http.post("/metrics").status_code == 405


def series(api: Api) -> set[tuple]:
    text = api.http.get("/metrics").text
    return {(sample.name, *sorted(sample.labels.items())) for family in parse_text(text) for sample in family.samples}


def strange_requests(api: Api, number: int) -> None:
    """What a client may choose freely: names of models and ids in turn, and sometimes paths, plans and methods."""
    name = f"made-up-{number}"
    if number % 2:
        api.http.get(f"/api/requests/{name}/{name}")
    else:
        api.http.post("/v1/completions", json={"model": name, "prompt": "x"}, headers={"x-request-id": name})
    if number < 20:
        api.http.get(f"/path/{name}")
        api.http.get(f"/api/plans/{name}/{number}")
        api.http.get(f"/v1/models/{name}")
        api.http.request(f"M{number % 7}", "/v1/models")


def test_a_thousand_made_up_names_and_ids_add_no_series(api: Api):
    for number in (0, 1):
        strange_requests(api, number)
    api.complete(user="user-0", metadata={"id": "0"})
    api.http.get("/metrics")
    before = series(api)
    for number in range(2, 1002):
        strange_requests(api, number)
    for number in range(10):
        api.complete(user=f"user-{number}", metadata={"id": str(number)})
    assert series(api) == before
    assert not any("made-up" in str(value) for found in before for value in found)


def http_count(api: Api, **labels: str) -> float:
    wanted = {"http_route": "", "http_request_method": "GET", "http_response_status_code": "200", **labels}
    for family in parse_text(api.http.get("/metrics").text):
        for sample in family.samples:
            if sample.name == "http_server_request_duration_seconds_count" and sample.labels == wanted:
                return sample.value
    return -1.0


@pytest.mark.parametrize(
    ("method", "path", "labels"),
    [
        ("GET", "/v1/models", {"http_route": "/v1/models"}),
        ("GET", f"/v1/models/{MODEL}", {"http_route": "/v1/models/{model}"}),
        ("GET", "/v1/models/other", {"http_route": "/v1/models/{model}", "http_response_status_code": "404"}),
        ("GET", "/api/plans/run/x", {"http_route": "/api/plans/{run}/{fence}", "http_response_status_code": "400"}),
        ("GET", "/nowhere", {"http_response_status_code": "404"}),
        ("PUT", "/v1/models", {"http_request_method": "PUT", "http_response_status_code": "405"}),
        ("POST", "/v1/completions", {
            "http_route": "/v1/completions", "http_request_method": "POST", "http_response_status_code": "400",
        }),
    ],
)  # fmt: skip
def test_requests_are_timed_by_route_method_and_status(api: Api, method, path, labels):
    before = max(0.0, http_count(api, **labels))
    for _ in range(3):
        api.http.request(method, path)
    assert http_count(api, **labels) == before + 3


def test_the_first_error_of_an_inference_route_is_not_the_first_of_its_series(api: Api):
    for route in ("/v1/chat/completions", "/v1/completions"):
        for status in ("200", "400", "429", "500", "503"):
            labels = {"http_route": route, "http_request_method": "POST", "http_response_status_code": status}
            assert http_count(api, **labels) >= 0.0


def test_a_stream_is_timed_when_it_has_ended(api: Api):
    api.engine.script = lambda _: [ids("a"), HOLD, ("stop", None)]
    labels = {"http_route": "/v1/completions", "http_request_method": "POST"}
    before = http_count(api, **labels)
    with api.http.stream("POST", "/v1/completions", json={"model": MODEL, "prompt": "x", "stream": True}) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data:")
        assert http_count(api, **labels) == before
        api.engine.release()
        assert list(lines)
    assert http_count(api, **labels) == before + 1


def test_a_mounted_application_is_one_route():
    class Handler:
        is_mount = True
        paths = frozenset({"/dashboard"})

    assert route_of({"type": "http", "route_handler": Handler(), "path_template": "/"}) == "/dashboard"
    assert route_of({"type": "http"}) == ""


class Gate:
    """In place of the rendering: each waits until the gate opens, and all are counted."""

    def __init__(self, render) -> None:
        self._render = render
        self.entered, self.opened = threading.Event(), threading.Event()
        self.renderings = 0

    def __call__(self, openmetrics: bool) -> bytes:
        self.renderings += 1
        self.entered.set()
        assert self.opened.wait(30)
        return self._render(openmetrics)


def test_fifty_scrapes_at_once_hold_up_no_request_and_cost_few_renderings(api: Api, monkeypatch):
    own = api.app.state.context.scrapes
    gate = Gate(own._render)
    monkeypatch.setattr(own, "_render", gate)
    with concurrent.futures.ThreadPoolExecutor(50) as pool, httpx.Client(base_url=api.url, verify=False) as other:
        waiting = [pool.submit(httpx.get, f"{api.url}/metrics", timeout=30, verify=False) for _ in range(50)]
        assert gate.entered.wait(30)
        for _ in range(20):  # while a rendering goes on and scrapes wait for the next
            assert other.get("/v1/models").status_code == 200
            assert other.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 70_000}).status_code == 400
            assert other.post("/v1/completions", json={"model": MODEL, "prompt": "Hi"}).status_code == 200
        assert gate.renderings == 1
        assert not any(scrape.done() for scrape in waiting)
        gate.opened.set()
        answers = [scrape.result() for scrape in waiting]
    assert {answer.status_code for answer in answers} == {200}
    assert gate.renderings < 10


def test_who_asks_during_a_rendering_gets_the_next_one_with_all_others_who_wait():
    gate = Gate(lambda _: str(gate.renderings).encode())

    async def scrape() -> list[bytes]:
        own, form = Scrapes(gate), Form(openmetrics=False, compressed=False)
        first = asyncio.create_task(own.body(form))
        while not gate.entered.is_set():
            await asyncio.sleep(0)
        later = [asyncio.create_task(own.body(form)) for _ in range(50)]
        await asyncio.sleep(0)
        left = later.pop()
        left.cancel()  # a scraper that goes takes nobody's answer along
        gate.opened.set()
        return await asyncio.gather(first, *later)

    assert asyncio.run(scrape()) == [b"1"] + [b"2"] * 49
    assert gate.renderings == 2


def test_a_rendering_that_fails_is_told_to_all_who_wait_for_it_and_the_next_is_tried():
    failures = [RuntimeError("once")]

    def render(_: bool) -> bytes:
        if failures:
            raise failures.pop()
        return b"text"

    async def scrape() -> list:
        own, form = Scrapes(render), Form(openmetrics=False, compressed=True)
        both = await asyncio.gather(own.body(form), own.body(form), return_exceptions=True)
        return [*both, await own.body(form)]

    first, second, third = asyncio.run(scrape())
    assert isinstance(first, RuntimeError)
    assert first is second
    assert gzip.decompress(third) == b"text"


class Timed:
    """HttpMetrics around an application that answers `status`, or fails before it; `counts` by labels."""

    def __init__(self, status: int | None) -> None:
        metrics = ServiceMetrics()
        self.app = HttpMetrics(self.answer, metrics.http_seconds)
        self.seconds, self.status = metrics.http_seconds, status
        self.scopes: list[str] = []

    async def answer(self, scope, receive, send) -> None:
        self.scopes.append(scope["type"])
        if self.status is None:
            raise OSError("the client has gone")
        await send({"type": "http.response.start", "status": self.status, "headers": []})

    def ask(self, **scope: object) -> None:
        async def send(message) -> None:
            pass

        asyncio.run(self.app(scope, None, send))

    @property
    def counts(self) -> dict[tuple[str, ...], float]:
        labels = ("http_route", "http_request_method", "http_response_status_code")
        return {
            tuple(sample.labels[label] for label in labels): sample.value
            for family in self.seconds.collect()
            for sample in family.samples
            if sample.name.endswith("_count") and sample.value
        }


def test_a_method_that_http_does_not_know_is_counted_as_other():
    timed = Timed(405)
    for method in ("BREW", "M1", "M2"):
        timed.ask(type="http", method=method)
    assert timed.counts == {("", "_OTHER", "405"): 3}


def test_a_request_whose_client_goes_before_the_answer_has_no_status():
    timed = Timed(None)
    with pytest.raises(OSError, match="gone"):
        timed.ask(type="http", method="GET", route_handler=object(), path_template="/v1/models")
    assert timed.counts == {("/v1/models", "GET", ""): 1}


def test_what_is_no_http_request_passes_untimed():
    timed = Timed(200)
    timed.ask(type="lifespan")
    timed.ask(type="websocket")
    assert timed.scopes == ["lifespan", "websocket"]
    assert timed.counts == {}
