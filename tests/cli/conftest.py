"""Runs `helios` in this process and answers its HTTP calls."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from service.cli import main


@pytest.fixture
def helios() -> Callable[..., Result]:
    def run(*arguments: str, **options: object) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="helios", **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


class ControlServer:
    """Answers every call with what `answers` holds for its method and path, and keeps the calls."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, object]] = {}
        self._once: dict[str, tuple[int, object]] = {}
        self.calls: list[tuple[str, str, str | None, object]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                outer.calls.append((self.command, self.path, self.headers.get("If-Match"), body))
                path = self.path.partition("?")[0]
                status, content = outer._once.pop(path, None) or outer.answers[self.command, path]
                payload = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            do_GET = do_PUT = do_POST = do_DELETE = _answer

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer_once(self, path: str, answer: tuple[int, object]) -> None:
        """What the next call of this path gets, before `answers` apply again."""
        self._once[path] = answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def control() -> Iterator[ControlServer]:
    server = ControlServer()
    yield server
    server.close()
