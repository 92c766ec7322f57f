"""The worker loop's one iteration: complete, apply commands, plan, commit, journal, submit, publish.

Up to two frames are in flight: while one runs the next is planned, if the scheduler lets it queue.

    collect ─► commands ─► admit ─► plan, commit ─► ONE journal write ─► submit ─► publish ─► (records of the
    publication go into the next iteration's write, and that iteration follows without sleeping, but for
    publications while both frame slots are taken: they wait for a result, PUBLICATION_NS at the most)

Nothing is published before the write that records what it rests on.
"""

from __future__ import annotations

import logging

from gpu.device import DeviceError, Frame, FrameResult
from scheduler.records import FinishReason
from service.engine.admission import admit_waiting
from service.engine.commands import apply_command
from service.engine.completion import abandon, collect_completion
from service.engine.core import FRAME_SLOTS, Core
from service.engine.planning import plan_and_commit
from service.engine.ports import Journal, Transport
from service.engine.publication import publish
from service.ipc.messages import EngineStopping
from service.journal.errors import FrameTooLarge
from service.journal.records import OutputPublished, RunEnded
from service.journal.status import Episodes

TICK_NS = 500_000_000
CHECKPOINT_NS = 10_000_000_000
"""How often the scheduler's state is written down; any decision is replayed from the one before it."""
PUBLICATION_NS = 5_000_000
"""How long it may take to write down when output became visible; what the output rests on was written before."""
SHUTTING_DOWN = "the server is shutting down"

_log = logging.getLogger(__name__)


class Worker:
    """One engine's loop over its parts, without its waiting: call step(), then wait for at most wait_ns()."""

    def __init__(self, core: Core, journal: Journal, transport: Transport, sync_ms: int = 1000) -> None:
        self.core = core
        self._journal = journal
        self._transport = transport
        self._tick_ns = max(1, min(TICK_NS, sync_ms * 1_000_000))
        self._next_tick_ns = 0
        self._next_checkpoint_ns = core.now_ns + CHECKPOINT_NS
        self._episodes = Episodes()
        self._may_queue = False

    @property
    def drained(self) -> bool:
        """No graph runs and nothing waits to be written or sent."""
        return not self.core.in_flight and not self._pending()

    def step(self) -> None:
        """One iteration."""
        core = self.core
        core.advance()
        collect_completion(core)
        for client, message in self._transport.receive():
            apply_command(core, client, message)
        admit_waiting(core)
        frame = plan_and_commit(core)
        self._write()
        if frame is not None:
            self._submit(frame)
        self._may_queue = frame is not None and len(core.in_flight) < FRAME_SLOTS
        publish(core, self._transport)
        core.metrics.requests(core.table, core.now_ns)
        if core.now_ns >= self._next_tick_ns:
            self._tick()
        self._journal.sync_if_due(core.now_ns)

    def wait_ns(self) -> int:
        """How long the loop may sleep when neither a message nor a result comes."""
        core, wake_ns = self.core, self._next_tick_ns
        if self._may_queue or self._refusal_is_next():
            return 0
        if self._pending():
            if not self._only_publications():
                return 0
            wake_ns = min(wake_ns, core.now_ns + PUBLICATION_NS)
        return max(0, wake_ns - core.clock())

    def begin_stop(self) -> None:
        """Take nothing in and plan nothing from now on; every client learns it in the next step()."""
        core = self.core
        core.stopping = True
        core.advance()
        for client in core.clients:
            core.say(client, EngineStopping())
        core.end_all(FinishReason.ABORT, SHUTTING_DOWN)

    def finish(self, reason: str) -> None:
        """Write the run's end; a graph that still runs is abandoned."""
        core = self.core
        core.advance()
        abandon(core)
        core.records.append(RunEnded(core.now_ns, reason))
        self._write()

    def fail(self, why: str) -> None:
        """After an unexpected error: every request ends with "error", every client learns it, the run ends.

        The state that the error left is trusted as little as possible.
        """
        core = self.core
        core.stopping = True
        for client in core.clients:
            core.say(client, EngineStopping())
        core.end_all(FinishReason.ERROR, "the engine failed")
        self._write()
        publish(core, self._transport)
        self.finish(f"failed: {why}")

    def _submit(self, frame: Frame) -> None:
        """Start the frame; one that the device does not take fails when its turn to complete comes."""
        core = self.core
        try:
            core.device.submit(frame)
        except DeviceError as error:
            _log.error("the device refused a frame: %s", error)
            now_ns = core.now_ns
            core.refused = FrameResult(frame.fence, now_ns, now_ns, 0, (), f"{type(error).__name__}: {error}")

    def _refusal_is_next(self) -> bool:
        core = self.core
        return core.refused is not None and core.in_flight[0].fence == core.refused.fence

    def _write(self) -> None:
        """One journal write of everything that this iteration decided."""
        self.core.log_calls()
        records = self.core.records
        if not records:
            return
        try:
            self._journal.append(records, self.core.last_fence)
        except FrameTooLarge as error:
            # The journal has counted them as lost, as on a full disk; serving goes on.
            _log.error("%s", error)
        # Only now: after any other error they must still be written before anything is published.
        self.core.records = []

    def _write_checkpoint(self) -> None:
        """In a frame of its own, so that a state too large for a segment costs no plan its records."""
        self._write()
        self.core.log_checkpoint()
        self._write()

    def _tick(self) -> None:
        core = self.core
        self._next_tick_ns = core.now_ns + self._tick_ns
        if core.now_ns >= self._next_checkpoint_ns:
            self._next_checkpoint_ns = core.now_ns + CHECKPOINT_NS
            self._write_checkpoint()
        core.metrics.refresh(
            core.now_ns, core.device, core.scheduler, self._journal.bytes_used, self._transport.malformed
        )
        status = self._journal.status()
        core.metrics.journal(status, self._episodes.look(status, core.now_ns))
        for client in [client for client in core.clients if not self._transport.probe(client)]:
            core.drop_client(client)

    def _only_publications(self) -> bool:
        """Nothing but when output became visible is to be written, and no plan could be made now."""
        core = self.core
        if core.touched or core.outbox or len(core.in_flight) < FRAME_SLOTS:
            return False
        return all(type(record) is OutputPublished for record in core.records)

    def _pending(self) -> bool:
        core = self.core
        return bool(core.records or core.touched or core.outbox)
