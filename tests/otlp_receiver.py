"""An OTLP/HTTP receiver of traces on loopback: decodes what arrives, and answers as a test tells it to."""

from __future__ import annotations

import gzip
import http.server
import socket
import ssl
import struct
import sys
import threading
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

DECODERS = {None: bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}


class Answer(NamedTuple):
    """An answer to one post. `how`: "hang" sends nothing until the receiver is closed, "reset" breaks the connection,
    "trickle" sends an endless body a byte at a time.

    `taken`: whether the receiver keeps the spans; by default where the status is 2xx.
    """

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b""
    how: str = ""
    taken: bool | None = None


def partial_success(rejected: int, message: str = "") -> Answer:
    """200, but so many of the spans were dropped."""
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=message)
    return Answer(body=ExportTraceServiceResponse(partial_success=partial).SerializeToString())


class Server(http.server.ThreadingHTTPServer):
    """Says nothing of a connection that was reset on purpose, or whose client has gone."""

    def handle_error(self, request, client_address) -> None:
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)


class OtlpReceiver:
    """`answers`: for the next posts, an Answer or a status alone; then 200. `spans`: all that was taken, in order.

    `requests`: what was taken, decoded; `headers`: of every post. `refuse_larger_than`: 413 for more spans at once.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, path: str = "/v1/traces") -> None:
        self.answers: list[Answer | int] = []
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.posts = 0
        self.refuse_larger_than: int | None = None
        self.refused_spans = 0
        self.arrived = threading.Condition()
        self._closed = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                assert self.path == path
                assert self.headers["Content-Type"] == "application/x-protobuf"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportTraceServiceRequest.FromString(DECODERS[self.headers["Content-Encoding"]](body))
                answer = outer._take(request, {name.lower(): value for name, value in self.headers.items()})
                if answer.how == "hang":
                    outer._closed.wait()
                    self.close_connection = True
                elif answer.how == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                    self.close_connection = True
                elif answer.how == "trickle":
                    self.close_connection = True
                    self._answer(answer._replace(headers={"Content-Length": "1000000"}))
                    while not outer._closed.wait(0.02):
                        self.wfile.write(b"x")
                else:
                    self._answer(answer)

            def _answer(self, answer: Answer) -> None:
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def _take(self, request: ExportTraceServiceRequest, headers: dict[str, str]) -> Answer:
        with self.arrived:
            self.posts += 1
            self.headers.append(headers)
            answer = self.answers.pop(0) if self.answers else Answer()
            answer = Answer(answer) if isinstance(answer, int) else answer
            size = sum(len(scope.spans) for item in request.resource_spans for scope in item.scope_spans)
            if self.refuse_larger_than is not None and size > self.refuse_larger_than:
                answer = Answer(413)
                self.refused_spans += size == 1
            if answer.taken if answer.taken is not None else not answer.how and 200 <= answer.status < 300:
                self.requests.append(request)
            self.arrived.notify_all()
            return answer

    def wait_for(self, condition, what: str, seconds: float = 60) -> None:
        """Until `condition()` holds, looked at whenever something arrives; fails with `what`."""
        with self.arrived:
            assert self.arrived.wait_for(condition, seconds), f"{what}: {sorted({s.name for s in self.spans})}"

    @property
    def spans(self) -> list:
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> list:
        """The spans of that name."""
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()


def plain(value: AnyValue):
    """An attribute's value as Python has it."""
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [plain(item) for item in found.values] if kind == "array_value" else found


def attributes(item) -> dict:
    """Attributes of a span, an event or a resource as Python values."""
    return {one.key: plain(one.value) for one in item.attributes}
