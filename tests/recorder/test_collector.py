"""What a collector may answer: what is sent again, what is given up, and in which form it is sent."""

from __future__ import annotations

import datetime as dt
import email.utils
import shutil
import socket
import ssl
import subprocess

import pytest
from needs import missing
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_receiver import Answer, OtlpReceiver, partial_success

from service.recorder.collector import Collector, retry_after_s
from service.recorder.pump import SinkUnavailable
from service.telemetry.exporter_settings import ExporterSettings
from service.telemetry.otlp import resource

WHO = resource("run-1", {})
MESSAGES = [
    Span(name="helios.plan", trace_id=bytes(15) + bytes([n]), span_id=bytes(7) + bytes([n])) for n in range(1, 9)
]
SPANS = [message.SerializeToString() for message in MESSAGES]


def collector_at(receiver: OtlpReceiver, **settings) -> Collector:
    return Collector(ExporterSettings(f"{receiver.url}/v1/traces", **settings))


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_the_standard_calls_retryable_is_to_be_sent_again(collector, status):
    collector.answers = [Answer(status, {"Retry-After": "7"}), status]
    with pytest.raises(SinkUnavailable) as asked:
        collector_at(collector).send(WHO, SPANS)
    assert asked.value.retry_after_s == 7.0
    with pytest.raises(SinkUnavailable) as plain:
        collector_at(collector).send(WHO, SPANS)
    assert plain.value.retry_after_s is None
    assert collector.spans == []
    assert collector_at(collector).send(WHO, SPANS) == 0
    assert len(collector.spans) == len(SPANS)


@pytest.mark.parametrize("status", [401, 403, 404, 405, 408, 415, 500, 501, 505])
def test_every_other_error_is_final(collector, status):
    collector.answers = [status]
    assert collector_at(collector).send(WHO, SPANS) == len(SPANS)
    assert collector.posts == 1


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirection_is_not_followed_and_nothing_is_lost(collector, status):
    collector.answers = [Answer(status, {"Location": f"{collector.url}/v1/traces"}, taken=False)]
    with pytest.raises(SinkUnavailable):
        collector_at(collector).send(WHO, SPANS)
    assert collector.posts == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_blames_the_content_costs_only_the_bad_span(collector, status):
    """Halves: all eight, four, two, and the first alone, which is the bad one; the rest goes through."""
    collector.answers = [status] * 4
    assert collector_at(collector).send(WHO, SPANS) == 1
    assert [span.span_id for span in collector.spans] == [span.span_id for span in MESSAGES[1:]]


def test_a_partial_success_is_a_loss_and_is_not_sent_again(collector):
    collector.answers = [partial_success(3, "too old"), partial_success(0, "deprecated"), partial_success(99)]
    assert [collector_at(collector).send(WHO, SPANS) for _ in range(3)] == [3, 0, len(SPANS)]
    assert collector.posts == 3


def test_what_a_collector_says_is_one_short_line_in_the_log(collector, caplog):
    collector.answers = [partial_success(1, "no\x1b[31m\n\x9b" * 4_000)]
    collector_at(collector).send(WHO, SPANS)
    (line,) = caplog.messages
    assert line.isprintable()
    assert len(line) < 1_000


@pytest.mark.parametrize("body", [b"{}", b"\xff" * 10, b"x" * 200_000])
def test_an_answer_that_is_no_protobuf_is_a_success_all_the_same(collector, body):
    collector.answers = [Answer(body=body)]
    assert collector_at(collector).send(WHO, SPANS) == 0


def test_an_answer_that_never_ends_does_not_hold_the_spans_up(collector):
    collector.answers = [Answer(how="trickle")]
    sender = collector_at(collector, timeout_s=0.3)
    with pytest.raises(SinkUnavailable, match="end of its answer"):
        sender.send(WHO, SPANS)
    assert sender.send(WHO, SPANS) == 0


@pytest.mark.parametrize(
    "answer",
    [
        Answer(headers={"Content-Encoding": "gzip"}, body=b"no gzip"),
        Answer(headers={"Content-Length": "9", "Connection": "close"}, body=b"x"),
    ],
)
def test_an_answer_that_is_broken_off_is_none(collector, answer):
    collector.answers = [answer]
    sender = collector_at(collector)
    with pytest.raises(SinkUnavailable, match="broke off"):
        sender.send(WHO, SPANS)
    assert sender.send(WHO, SPANS) == 0


@pytest.mark.parametrize("how", ["hang", "reset"])
def test_a_collector_that_does_not_answer_is_asked_again(collector, how):
    collector.answers = [Answer(how=how)]
    with pytest.raises(SinkUnavailable):
        collector_at(collector, timeout_s=0.2).send(WHO, SPANS)
    assert collector_at(collector).send(WHO, SPANS) == 0
    assert len(collector.spans) == len(SPANS)


def test_a_collector_that_is_not_there_is_asked_again():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces"
        with pytest.raises(SinkUnavailable, match="cannot be reached"):
            Collector(ExporterSettings(url)).send(WHO, SPANS)


def test_a_password_in_the_address_is_not_said(caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(SinkUnavailable) as caught:
            Collector(ExporterSettings(f"http://anna:s3cret@127.0.0.1:{port}/v1/traces")).send(WHO, SPANS)
    assert str(caught.value).startswith(f"http://127.0.0.1:{port}/v1/traces cannot be reached")
    assert "s3cret" not in str(caught.value) + caplog.text


def test_nothing_is_posted_for_no_spans(collector):
    assert collector_at(collector).send(WHO, []) == 0
    assert collector.posts == 0


@pytest.mark.parametrize("compression", ["gzip", "deflate", "none"])
def test_each_compression_arrives(collector, compression):
    assert collector_at(collector, compression=compression, headers={"api-key": "k", "x": "y z"}).send(WHO, SPANS) == 0
    assert [span.span_id for span in collector.spans] == [span.span_id for span in MESSAGES]
    (headers,) = collector.headers
    assert headers.get("content-encoding") == (None if compression == "none" else compression)
    assert (headers["api-key"], headers["x"]) == ("k", "y z")


@pytest.mark.parametrize("text", ["", "soon", "-", "nan", "inf"])
def test_a_retry_after_that_says_nothing_is_none(text):
    assert retry_after_s(text) is None


@pytest.mark.parametrize(
    "text",
    [f"Mon, 30 Nov 2026 12:00:00 +{10**17}", f"Mon, 30 Nov {10**21} 12:00:00 GMT", f"Mon, 30 Nov 2026 {10**20}:0:0"],
)
def test_a_time_beyond_all_clocks_says_nothing_and_spoils_no_answer(collector, text):
    assert retry_after_s(text) is None
    collector.answers = [Answer(200, {"Retry-After": text})]
    assert collector_at(collector).send(WHO, SPANS) == 0


def test_a_retry_after_may_be_a_number_or_a_time():
    assert (retry_after_s("120"), retry_after_s(" 1.5 "), retry_after_s("-3")) == (120.0, 1.5, 0.0)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    assert 3500 < retry_after_s(email.utils.format_datetime(later, usegmt=True)) <= 3600
    assert retry_after_s("Thu, 01 Jan 1970 00:00:00 GMT") == 0.0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and a certificate of 127.0.0.1 that it signs itself: (certificate, key)."""
    if shutil.which("openssl") is None:
        missing("tests of TLS need openssl (Debian: apt-get install openssl)")
    folder = tmp_path_factory.mktemp("tls")
    made = [str(folder / name) for name in ("certificate.pem", "key.pem")]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-out", made[0], "-keyout", made[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


def test_a_certificate_that_is_trusted_lets_spans_through_and_another_does_not(certificate):
    """With the client's own certificate, which this collector asks for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.load_verify_locations(certificate[0])
    context.verify_mode = ssl.CERT_REQUIRED
    receiver = OtlpReceiver(context)
    ours = {"client_certificate": certificate[0], "client_key": certificate[1]}
    try:
        assert collector_at(receiver, certificate=certificate[0], **ours).send(WHO, SPANS) == 0
        for wrong in (ours, {"certificate": certificate[0] + ".gone", **ours}, {"certificate": certificate[0]}):
            with pytest.raises(SinkUnavailable):
                collector_at(receiver, **wrong).send(WHO, SPANS)
        assert len(receiver.spans) == len(SPANS)
    finally:
        receiver.close()
