"""`python -m dashboard.reader.process NUMBER`: makes the dashboard's pages and figures in a process of its own.

A view takes the interpreter for some ten milliseconds at a time, for which tokens would wait in the service's process.
The service has checked who asks and what; a policy can be read here, but neither changed nor tried, and the store
cannot be written. NUMBER is an inherited socket over which the service hands over a socket for each call.
"""

from __future__ import annotations

import signal

from service.process import guard_child, leave

if __name__ == "__main__":
    guard_child(signal.SIGKILL)  # before the imports that take seconds

import asyncio
import contextlib
import logging
import pathlib
import resource
import socket
import sys
from typing import Any

import dash
import msgspec
from litestar.types import HTTPScope

from dashboard.app import create_dashboard
from dashboard.asgi import CALLBACK_PATH, problem, watch_inputs
from dashboard.caller import acting_for
from dashboard.reader.messages import Answer, Call, OtherEndClosed, Start, receive_call, send
from service.control.guards import GuardControl
from service.control.policy import PolicyControl
from service.control.preview.jobs import Previews
from service.ipc.errors import EngineError
from service.leaving import DISCONNECT, ClientLeft, unless_left
from service.priority import give_way
from service.store.database import open_database

_log = logging.getLogger(__name__)
NICENESS = 5
"""A third of an ordinary process's share where every core is taken: who looks for the cause must still be answered."""
MORE_MEMORY = 2 << 30
"""Bytes of address space beyond what the process has when it is ready; what a view's rows and figure may take."""
MOST_SOCKETS = 64
_NO_MEMORY = "This needs more memory than a view may have; ask for a shorter span of time or fewer rows"


def main() -> int:
    """Answers until the service closes its end, or ends."""
    guard_child(signal.SIGKILL)  # nothing is written here, and one that is stopped ends too
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    start = msgspec.json.decode(sys.stdin.buffer.read(), type=Start)
    app = dashboard_for(start)
    _limit_memory()
    give_way(NICENESS)  # only now: somebody waits while it gets ready
    with socket.socket(fileno=int(sys.argv[1])) as control:
        asyncio.run(serve(app, control))
    return 0


def dashboard_for(start: Start) -> dash.Dash:
    """The dashboard that the service has, but that it changes nothing."""
    store = open_database(start.database, readonly=True)
    control = PolicyControl(store, _no_engine)
    previews = Previews(pathlib.Path(start.previews_dir), start.database, store)
    app = create_dashboard(
        engine=store,
        control=control,
        guards=GuardControl(control),
        previews=previews,
        mixed_prefill=start.mixed_prefill,
    )
    watch_inputs(app)
    return app


async def _no_engine(*_: object, **__: object) -> int:
    raise EngineError("the dashboard's reader speaks to no engine")


def _limit_memory() -> None:
    """Where the system tells how much there is already: threads and libraries reserve more on larger machines."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        pages = int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + MORE_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


async def serve(app: dash.Dash, control: socket.socket) -> None:
    """Takes a socket for each call from `control` and answers it, until the other end is closed."""
    loop, ends = asyncio.get_running_loop(), asyncio.Event()
    answering: set[asyncio.Task[None]] = set()
    control.setblocking(False)

    def take() -> None:
        try:
            told, descriptors, _, _ = socket.recv_fds(control, MOST_SOCKETS, MOST_SOCKETS)
        except BlockingIOError:
            return
        except OSError:
            told, descriptors = b"", []
        if not told:
            loop.remove_reader(control)
            ends.set()
        for descriptor in descriptors:
            task = loop.create_task(_answer_on(app, socket.socket(fileno=descriptor)))
            answering.add(task)
            task.add_done_callback(answering.discard)

    loop.add_reader(control, take)
    await ends.wait()


async def _answer_on(app: dash.Dash, connection: socket.socket) -> None:
    connection.setblocking(False)
    with connection, contextlib.suppress(OtherEndClosed, OSError, ClientLeft):
        call = await receive_call(connection)
        with acting_for(call.caller):
            answer = await _answered(app, call, connection)
        await send(connection, answer)


async def _answered(app: dash.Dash, call: Call, connection: socket.socket) -> Answer:
    """What Dash answers; it is stopped when the other end is closed. Raises ClientLeft."""
    parts: list[dict[str, Any]] = []
    posted = [{"type": "http.request", "body": call.body, "more_body": False}]

    async def left() -> dict[str, Any]:
        await asyncio.get_running_loop().sock_recv(connection, 1)  # nothing comes any more but the end
        return {"type": DISCONNECT}

    async def receive() -> dict[str, Any]:
        return posted.pop() if posted else await asyncio.get_running_loop().create_future()

    async def keep(message: Any) -> None:
        parts.append(message)

    try:
        await unless_left(left, app.server(_scope(call), receive, keep))
    except MemoryError:
        return problem(503, _NO_MEMORY)
    except ClientLeft:
        raise
    except Exception:
        _log.exception("a view failed")
    if not parts:
        return problem(500, "The view failed; the server's log has the reason.")
    start, *bodies = parts
    return Answer(start["status"], list(start["headers"]), b"".join(part.get("body", b"") for part in bodies))


def _scope(call: Call) -> HTTPScope:
    """What an ASGI server would give: without the keys that Litestar adds, which its type demands and nobody reads."""
    scope: HTTPScope = {  # type: ignore[typeddict-item]
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": CALLBACK_PATH,
        "raw_path": CALLBACK_PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": call.headers,
        "client": None,
        "server": None,
    }
    return scope


if __name__ == "__main__":
    leave(main())
