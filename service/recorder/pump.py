"""Carries records from the journal to one sink, in bounded batches, for as long as it takes.

Each sink has its own pump on its own thread with its own reader, so a sink that is down holds up nobody else.
"""

from __future__ import annotations

import logging
import pathlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from sqlalchemy import exc

from service.journal.packed import decode_records
from service.journal.reader import Batch, Decode, Gap, JournalReader, Position
from service.journal.segments import writer_lives
from service.recorder.gauges import SinkGauges
from service.store.errors import StoreError

log = logging.getLogger(__name__)

Item = Batch | Gap

BATCH_RECORDS = 1500
MOST_RECORDS = 6000
"""Of one transaction: ordinarily, and at the most while the sink is behind. One frame more may be added."""
BATCH_S = 0.1
LINGER_S = 0.2
"""How long reading goes on for one transaction, and how long records wait at the journal's end for company."""
IDLE_S = 0.05
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0
LONGEST_ASKED_S = 60.0
"""A pause doubles from the first to the last, unless the sink asks for another one, of up to so long."""


class SinkUnavailable(Exception):
    """A sink cannot take anything now; `retry_after_s` is what it asked for, or None."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


UNAVAILABLE = (StoreError, exc.SQLAlchemyError, SinkUnavailable, OSError)
"""What a sink raises when the same call can help later; a delivery is then made again with the same items."""


class Delivery(NamedTuple):
    """Records that arrived, records that can never arrive at this sink, and spans that were refused for good."""

    delivered: int
    lost: int
    lost_spans: int = 0


class Sink(Protocol):
    """Where a pump delivers to. Methods raise one of UNAVAILABLE, and may then be called again as before."""

    @property
    def name(self) -> str: ...

    @property
    def run_open(self) -> bool: ...

    @property
    def run_id(self) -> str | None: ...

    def resume(self) -> Position | None: ...

    def deliver(self, items: Sequence[Item]) -> Delivery: ...

    def close_lost_run(self) -> None: ...

    def idle(self) -> None: ...

    def needed_segment(self, position: Position) -> int: ...


class Pump:
    """Reads the journal and delivers to one sink until `stop` is set and the journal's end is reached."""

    def __init__(
        self,
        directory: pathlib.Path,
        sink: Sink,
        stop: threading.Event,
        gauges: SinkGauges,
        passed: Callable[[str, int], None],
        now: Callable[[], float] = time.monotonic,
        decode: Decode = decode_records,
    ) -> None:
        self._directory = directory
        self._sink = sink
        self._stop = stop
        self._gauges = gauges
        self._passed = passed
        self._now = now
        self._decode = decode
        self._pending: list[Item] = []
        self._records = 0
        self._most = BATCH_RECORDS
        self._gathered_since = 0.0
        self._ahead: Item | None = None
        self._retry_s = 0.0
        self._reader: JournalReader | None = None

    def run(self) -> None:
        """Until the end was reached after `stop`. A sink that is down is tried again without end."""
        while not self._turn():
            pass
        if self._reader is not None:
            self._reader.close()

    def _turn(self) -> bool:
        """One batch, or one wait. True when everything is delivered and the pump is to stop."""
        try:
            if self._reader is None:
                position = self._sink.resume()
                self._reader = JournalReader(self._directory, position, run_id=self._sink.run_id, decode=self._decode)
            finished = self._step(self._reader)
        except UNAVAILABLE as error:
            self._back_off(error)
            return False
        except Exception as error:  # a mistake of ours must not end the trace
            log.exception("sink %s failed unexpectedly and is tried again", self._sink.name)
            self._back_off(error)
            return False
        if self._retry_s:
            log.warning("sink %s can be used again", self._sink.name)
        self._retry_s = 0.0
        return finished

    def _step(self, reader: JournalReader) -> bool:
        stopping = self._stop.is_set()  # read first: what was journaled before the stop is delivered
        # What failed before is delivered again as it was, not grown without bound.
        retrying = bool(self._retry_s and self._pending)
        tail = not retrying and self._fill(reader)
        if self._pending:
            if tail and not stopping and self._may_gather():
                self._stop.wait(IDLE_S)
            else:
                self._deliver()
            return False
        if not tail:
            return False
        if self._sink.run_open and writer_lives(self._directory) is False and not self._fill_one(reader):
            self._sink.close_lost_run()
        self._sink.idle()
        self._gauges.at_tail()
        if stopping and not self._pending:
            return True
        self._stop.wait(IDLE_S)
        return False

    def _fill(self, reader: JournalReader) -> bool:
        """Read until the batch is full or the tail is reached (True)."""
        deadline = self._now() + BATCH_S
        while self._records < self._most and self._now() < deadline:
            item = self._ahead if self._ahead is not None else reader.poll()
            self._ahead = None
            if item is None:
                self._most = BATCH_RECORDS
                return True
            if self._pending and _run_changes(self._pending, item):
                self._ahead = item
                return False
            self._take(item)
        self._most = min(MOST_RECORDS, 2 * self._most)  # behind: a larger transaction costs less for each record
        return False

    def _take(self, item: Item) -> None:
        if not self._pending:
            self._gathered_since = self._now()
        self._pending.append(item)
        self._records += len(item.records) if isinstance(item, Batch) else 0

    def _may_gather(self) -> bool:
        """Whether the pending records may wait for more, which cost less together."""
        return self._records < BATCH_RECORDS and self._now() < self._gathered_since + LINGER_S

    def _fill_one(self, reader: JournalReader) -> bool:
        """Look once more, now that the writer is known to be gone."""
        item = reader.poll()
        if item is not None:
            self._take(item)
        return item is not None

    def _deliver(self) -> None:
        self._gauges.behind(self._pending)
        done = self._sink.deliver(self._pending)
        self._gauges.delivered(*done)
        position = self._pending[-1].position
        self._pending, self._records = [], 0
        self._passed(self._sink.name, self._sink.needed_segment(position))

    def _back_off(self, error: Exception) -> None:
        first = self._retry_s == 0.0
        self._retry_s = min(LAST_RETRY_S, self._retry_s * 2 or FIRST_RETRY_S)
        if first:
            log.warning("sink %s cannot be used now and is tried again; nothing is lost: %s", self._sink.name, error)
        asked = getattr(error, "retry_after_s", None)
        self._gauges.behind(self._pending)
        # Not all at once: what is up again after a pause has more than one server waiting for it.
        pause = self._retry_s * random.uniform(0.5, 1.0) if asked is None else min(asked, LONGEST_ASKED_S)
        self._stop.wait(max(pause, FIRST_RETRY_S / 2))
        if self._stop.is_set():  # no waiting any more, but no busy loop either: the deadline ends it
            threading.Event().wait(min(self._retry_s, 0.2))


def _run_changes(pending: list[Item], item: Item) -> bool:
    """Whether the item is of another run than the pending batches; a batch of items stays within one run."""
    run_id = next((p.run_id for p in pending if isinstance(p, Batch)), None)
    return run_id is not None and item.run_id != run_id
