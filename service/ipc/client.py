"""The service's end of the connection to the engine, on asyncio.

One task keeps one connection at a time: connect, Hello, EngineReady, events, until the socket monitor reports
the disconnect. Each connection has a socket of its own, so nothing that was meant for a dead engine is ever sent
to its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Literal, Self, cast

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from service.ipc.errors import EngineError, EngineLost, EngineRefused, EngineUnavailable, PolicyRejected
from service.ipc.messages import (
    Accepted,
    ConfigurePolicy,
    EngineReady,
    EngineStopping,
    Event,
    Hello,
    PolicyAcknowledged,
    Refused,
    Submit,
    ToEngine,
    Tokens,
    encode,
    events_decoder,
)
from service.ipc.streams import Stream

State = Literal["starting", "ready", "stopping", "down"]
RECONNECT_MS = 50
POLICY_TIMEOUT_S = 5.0
HIGH_WATER = 20_000

_log = logging.getLogger(__name__)


class EngineClient:
    """Speaks to whichever engine listens at `endpoint`, and to its successors.

    `state`: "starting" until the first engine is ready; "ready"; "stopping" once it said so; "down" after it went
    away, until the next one is ready. `ready`: that engine's identity and limits, None unless state is "ready" or
    "stopping". All methods belong to one event loop.
    """

    def __init__(self, endpoint: str, worker: str | None = None) -> None:
        self.endpoint = endpoint
        self.worker = worker or f"service-{os.getpid()}"
        self.state: State = "starting"
        self.ready: EngineReady | None = None
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._streams: dict[str, Stream] = {}
        self._policy_waits: list[tuple[ConfigurePolicy, asyncio.Future[int]]] = []
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Begin connecting; returns at once. `wait_ready` waits for the engine."""
        if self._task is None:
            self._context = zmq.asyncio.Context()
            self._task = asyncio.create_task(self._keep_connected(), name="engine-client")

    async def close(self) -> None:
        """End the connection; open streams end with EngineLost. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._context is not None:
            self._context.term()
            self._context = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def wait_ready(self) -> EngineReady:
        """Wait, without a limit, for a ready engine."""
        while self.ready is None or self.state != "ready":
            await self._changed.wait()
        return self.ready

    def submit(self, request: Submit) -> Stream:
        """The request as a stream; nothing is sent before `async with` enters it."""
        return Stream(self, request)

    async def configure_policy(
        self,
        version: int,
        coefficients: dict[str, float | int | str],
        timeout_s: float = POLICY_TIMEOUT_S,
        *,
        withdraws: int | None = None,
    ) -> int:
        """Use these coefficients from the next plan on; returns the fence after which they hold.

        With `withdraws` the engine goes back to `version` from a higher one up to that number.
        Raises PolicyRejected when the engine refuses them, and EngineUnavailable when there is no engine, or when
        it went away or stayed silent for `timeout_s` before it answered (whether it used them is then unknown).
        """
        command = ConfigurePolicy(version, dict(coefficients), withdraws)
        wait = (command, asyncio.get_running_loop().create_future())
        self._policy_waits.append(wait)
        try:
            self.send(command)
            return await asyncio.wait_for(wait[1], timeout_s)
        except TimeoutError:
            raise EngineUnavailable(
                f"the engine did not acknowledge policy version {version} within {timeout_s:g} s"
            ) from None
        finally:
            with contextlib.suppress(ValueError):
                self._policy_waits.remove(wait)

    def send(self, message: ToEngine) -> None:
        """Hand one message to the engine. Raises EngineUnavailable when none is ready or it does not read."""
        if self._socket is None or self.state != "ready":
            raise EngineUnavailable(f"the engine is {self.state}; try again in a moment")
        error = _send(self._socket, message)
        if error is not None:
            raise EngineUnavailable(f"the engine does not read its messages ({error}); try again in a moment")

    def open_stream(self, stream: Stream) -> None:
        """Route a request's events. Raises EngineRefused when this client has a stream of the same id."""
        request_id = stream.request.request_id
        if request_id in self._streams:
            raise EngineRefused("duplicate", f"request {request_id} is already running")
        self._streams[request_id] = stream

    def close_stream(self, stream: Stream) -> None:
        """Stop routing a request's events."""
        if self._streams.get(stream.request.request_id) is stream:
            del self._streams[stream.request.request_id]

    async def _keep_connected(self) -> None:
        while True:
            try:
                await self._one_connection()
            except zmq.ZMQError as error:
                _log.error("engine connection at %s failed: %s", self.endpoint, error)
                await asyncio.sleep(RECONNECT_MS / 1000)

    async def _one_connection(self) -> None:
        """One engine, from connecting to losing it."""
        assert self._context is not None
        socket = self._context.socket(zmq.DEALER)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
            socket.set(zmq.SNDHWM, HIGH_WATER)
            socket.set(zmq.RCVHWM, HIGH_WATER)
            socket.connect(self.endpoint)
            while (await recv_monitor_message(monitor))["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                pass
            self._socket = socket
            _send(socket, Hello(self.worker))
            await self._serve_until_lost(socket, monitor)
        finally:
            self._lose()
            socket.disable_monitor()
            monitor.close(0)
            socket.close(0)

    async def _serve_until_lost(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        """Events until the disconnect, and then those that had arrived before it."""
        gone = asyncio.create_task(_disconnected(monitor), name="engine-monitor")
        receiving = _receive(socket)
        try:
            while not gone.done():
                await asyncio.wait((gone, receiving), return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    self._take(receiving.result())
                    receiving = _receive(socket)
            if receiving.done():  # not cancelled below, which would lose the message
                self._take(receiving.result())
            while (waiting := _receive(socket, zmq.NOBLOCK)).exception() is None:
                self._take(waiting.result())
        finally:
            gone.cancel()
            receiving.cancel()

    def _take(self, body: bytes) -> None:
        try:
            events = events_decoder.decode(body).items
        except msgspec.MsgspecError as error:
            _log.error("dropped a message of the engine that cannot be decoded: %s", error)
            return
        for event in events:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        match event:
            case Tokens():
                if (stream := self._streams.get(event.request_id)) is not None:
                    stream.deliver(event)
            case Accepted():
                if (stream := self._streams.get(event.request_id)) is not None:
                    stream.accepted()
            case Refused():
                if (stream := self._streams.get(event.request_id)) is not None:
                    stream.fail(EngineRefused(event.code, event.message))
            case PolicyAcknowledged():
                self._acknowledge(event)
            case EngineReady():
                self.ready = event
                self._enter("ready")
            case EngineStopping():
                self._enter("stopping")

    def _acknowledge(self, event: PolicyAcknowledged) -> None:
        for command, future in self._policy_waits:
            same = (command.version, command.withdraws) == (event.version, event.withdraws)
            if same and not future.done():
                if event.error is None:
                    future.set_result(event.fence)
                else:
                    future.set_exception(PolicyRejected(event.error))
                return

    def _lose(self) -> None:
        """The connection is over: whatever waited for the engine learns it now."""
        self._socket = None
        self.ready = None
        if self.state != "starting":
            self._enter("down")
        lost: EngineError = EngineLost("the engine went away while it worked on this request")
        for stream in list(self._streams.values()):
            stream.fail(lost)
        for command, future in self._policy_waits:
            if not future.done():
                future.set_exception(
                    EngineUnavailable(f"the engine went away before it acknowledged policy version {command.version}")
                )

    def _enter(self, state: State) -> None:
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()


async def _disconnected(monitor: zmq.asyncio.Socket) -> None:
    while (await recv_monitor_message(monitor))["event"] != zmq.EVENT_DISCONNECTED:
        pass


# zmq.asyncio returns asyncio futures, already done for NOBLOCK calls; its annotations say only Awaitable.
def _receive(socket: zmq.asyncio.Socket, flags: int = 0) -> asyncio.Future[bytes]:
    return cast("asyncio.Future[bytes]", socket.recv(flags))


def _send(socket: zmq.asyncio.Socket, message: ToEngine) -> BaseException | None:
    """Hand `message` over now; the error when that is not possible."""
    return cast("asyncio.Future[object]", socket.send(encode(message), zmq.NOBLOCK)).exception()
