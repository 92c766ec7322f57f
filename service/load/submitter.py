"""Load on an engine's own socket: requests without HTTP, and a count of every token that comes back.

A `Submitter` keeps a fixed number of requests open. It is a client of the engine like a worker of the service, so it
works beside a running server too. When the engine goes away its requests count as lost, and the next engine at the
same endpoint gets new ones.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable
from typing import Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from service.ipc.messages import (
    Cancel,
    EngineReady,
    Event,
    Hello,
    Refused,
    Sampling,
    Submit,
    ToEngine,
    Tokens,
    encode,
    events_decoder,
)
from service.load.errors import LoadRefused, LoadStalled

LOST = "lost"
"""How a request ended whose engine went away."""
WAIT_S = 60.0
_RECONNECT_MS = 20
_HIGH_WATER = 20_000
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """`lanes` requests open at a time, each of so many prompt and output tokens; all of them greedy, without stops."""

    lanes: int = 8
    prompt_tokens: int = 16
    output_tokens: int = 1000


@dataclasses.dataclass(slots=True)
class Received:
    """What came back of one request. `ended`: the engine's finish reason, LOST, or None while it is open."""

    run_id: str
    tokens: int = 0
    ended: str | None = None


@dataclasses.dataclass(slots=True)
class Window:
    """What arrived between two calls of `Submitter.window`.

    `gaps_ms`: from one message of a request to its next, of those whose both ends lie in the window.
    """

    began_ns: int
    ended_ns: int = 0
    tokens: int = 0
    messages: int = 0
    gaps_ms: list[float] = dataclasses.field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long the window lasted."""
        return (self.ended_ns - self.began_ns) / 1e9


class Submitter:
    """Keeps `load` on the engine at `endpoint` while open; a context manager. Counts are read from any thread."""

    def __init__(self, endpoint: str, load: Load) -> None:
        self._endpoint = endpoint
        self._load = load
        self._context = zmq.Context()
        self._command, self._told = _pair(self._context)
        self._changed = threading.Condition()
        self._received: dict[str, Received] = {}
        self._open: dict[str, int] = {}
        self._prefix = f"load-{secrets.token_hex(4)}"
        self._window = Window(time.monotonic_ns())
        self._pausing = True
        self._closing = False
        self._refusal: str | None = None
        self._ready: EngineReady | None = None
        self._total = 0
        self._socket: zmq.Socket[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._command.send(b"")
        self._thread.join()
        self._command.close(0)
        self._context.term()

    @property
    def tokens(self) -> int:
        """Tokens received so far."""
        return self._total

    @property
    def run_id(self) -> str | None:
        """The engine run that is connected, None without one."""
        return None if self._ready is None else self._ready.run_id

    def received(self) -> dict[str, Received]:
        """Every request so far by its id."""
        with self._changed:
            return {name: dataclasses.replace(found) for name, found in self._received.items()}

    def begin(self) -> None:
        """Submit until `lanes` requests are open, and another one for each that ends."""
        self._pausing = False
        self._command.send(b"")

    def pause(self, cancel: bool = False) -> None:
        """Submit nothing more; with `cancel`, end what is open. Returns when nothing is open any more.

        Raises LoadStalled and LoadRefused.
        """
        with self._changed:
            self._pausing = True
        if cancel:
            self._command.send(b"cancel")
        self._wait(lambda: not self._open, WAIT_S)

    def wait_ready(self, other_than: str | None = None, seconds: float = WAIT_S) -> str:
        """The run id of the engine that is connected, once there is one that is not `other_than`.

        Raises LoadStalled and LoadRefused.
        """
        self._wait(lambda: self.run_id not in (None, other_than), seconds)
        assert self._ready is not None
        return self._ready.run_id

    def wait_tokens(self, count: int, seconds: float = WAIT_S) -> None:
        """Return when `count` more tokens have come. Raises LoadStalled and LoadRefused."""
        wanted = self._total + count
        self._wait(lambda: self._total >= wanted, seconds)

    def window(self) -> Window:
        """What came since the last call."""
        now_ns = time.monotonic_ns()
        with self._changed:
            done, self._window = self._window, Window(now_ns)
        done.ended_ns = now_ns
        return done

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        with self._changed:
            come = self._changed.wait_for(lambda: condition() or self._refusal is not None, seconds)
        if self._refusal is not None:
            raise LoadRefused(f"the engine refused a request of the load: {self._refusal}")
        if not come:
            raise LoadStalled(f"waited {seconds:g} s in vain for the engine at {self._endpoint}; see its log")

    def _run(self) -> None:
        while not self._closing:
            self._one_connection()
        self._told.close(0)

    def _one_connection(self) -> None:
        """One engine, from connecting to losing it."""
        socket = self._context.socket(zmq.DEALER)
        monitor = socket.get_monitor_socket(_WATCHED)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RECONNECT_IVL, _RECONNECT_MS),
            (zmq.SNDHWM, _HIGH_WATER),
            (zmq.RCVHWM, _HIGH_WATER),
        ):
            socket.set(option, value)
        socket.connect(self._endpoint)
        self._socket = socket
        poller = zmq.Poller()
        for waited in (socket, monitor, self._told):
            poller.register(waited, zmq.POLLIN)
        try:
            while not self._closing and self._turn(dict(poller.poll()), monitor):
                pass
        finally:
            self._lose()
            socket.disable_monitor()
            monitor.close(0)
            socket.close(0)

    def _turn(self, waiting: dict[object, int], monitor: zmq.Socket[bytes]) -> bool:
        """What waits now; False when the engine is gone, after what it had sent before."""
        assert self._socket is not None
        if self._told in waiting and self._told.recv() == b"cancel":
            for name in self._open:
                self._send(Cancel(name, "abort"))
        if self._socket in waiting:
            self._take(self._socket.recv())
        if monitor in waiting:
            if recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED:
                while self._socket.poll(0):
                    self._take(self._socket.recv())
                return False
            self._send(Hello(self._prefix))
        self._fill()
        return True

    def _take(self, body: bytes) -> None:
        now_ns = time.monotonic_ns()
        events = events_decoder.decode(body).items
        with self._changed:
            for event in events:
                self._handle(event, now_ns)
            self._window.messages += 1
            self._changed.notify_all()

    def _handle(self, event: Event, now_ns: int) -> None:
        match event:
            case Tokens():
                self._count(event, now_ns)
            case EngineReady():
                self._ready = event
            case Refused():
                self._open.pop(event.request_id, None)
                self._received[event.request_id].ended = event.code
                if event.code != "stopping":
                    self._refusal = f"{event.code}: {event.message}"

    def _count(self, event: Tokens, now_ns: int) -> None:
        found = self._received[event.request_id]
        found.tokens += len(event.token_ids)
        self._total += len(event.token_ids)
        before_ns, window = self._open.get(event.request_id, 0), self._window
        window.tokens += len(event.token_ids)
        if before_ns >= window.began_ns and event.token_ids:
            window.gaps_ms.append((now_ns - before_ns) / 1e6)
        if event.finish_reason is None:
            self._open[event.request_id] = now_ns
        else:
            found.ended = event.finish_reason
            self._open.pop(event.request_id, None)

    def _fill(self) -> None:
        if self._ready is None or self._refusal is not None:
            return
        load = self._load
        prompt = [1 + n % (self._ready.vocab_size - 1) for n in range(load.prompt_tokens)]
        while (name := self._next_name(self._ready.run_id)) is not None:
            now_ns = time.monotonic_ns()
            self._send(Submit(name, "load", prompt, load.output_tokens, Sampling(0.0), [], False, now_ns, 0))

    def _next_name(self, run_id: str) -> str | None:
        """A request more that is to be open; None when there are enough."""
        with self._changed:  # a pause that has begun must see every request that is open
            if self._pausing or len(self._open) >= self._load.lanes:
                return None
            name = f"{self._prefix}-{len(self._received)}"
            self._received[name] = Received(run_id)
            self._open[name] = 0
            return name

    def _send(self, message: ToEngine) -> None:
        assert self._socket is not None
        self._socket.send(encode(message), zmq.NOBLOCK)

    def _lose(self) -> None:
        """The connection is over: what was open is lost."""
        with self._changed:
            self._ready = None
            for name in self._open:
                self._received[name].ended = LOST
            self._open.clear()
            self._changed.notify_all()


def _pair(context: zmq.Context[zmq.Socket[bytes]]) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Two connected sockets: one thread wakes another one's poll."""
    left, right = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    endpoint = f"inproc://{id(left)}"
    left.bind(endpoint)
    right.connect(endpoint)
    return left, right
