"""The OTLP sink: spans of the same records, with an offset of its own.

A span is sent when its plan or request ends. What is still open is kept in memory; a second offset remembers where
the oldest open one begins, so a restart reads from there, sends nothing until it reaches the first offset, and then
goes on. Spans that were sent but not yet noted are sent again with the same ids.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from service.journal.reader import Gap, Position
from service.journal.records import RunEnded
from service.recorder import runs
from service.recorder.clock import RunClock
from service.recorder.collector import Collector
from service.recorder.offsets import OTLP_OPEN, OTLP_SINK, load_offset, store_offset
from service.recorder.open_spans import OpenSpans
from service.recorder.pump import Delivery, Item
from service.store.database import write_transaction
from service.store.engines import read_transaction
from service.store.errors import StoreError
from service.telemetry.otlp import about_run, resource

log = logging.getLogger(__name__)


class _Progress(NamedTuple):
    """Positions that are not in the store yet."""

    sent: Position
    needed: Position


class OtlpSink:
    """Sends spans to one collector. Methods raise SinkUnavailable or StoreError, having changed nothing here."""

    name = OTLP_SINK

    def __init__(self, engine: sa.Engine, journal_id: str, collector: Collector) -> None:
        self._engine = engine
        self._journal_id = journal_id
        self._collector = collector
        self._open = OpenSpans("", RunClock(0, 0))
        self._sent: Position | None = None
        self._unsaved: _Progress | None = None
        self.run_id: str | None = None
        self.run_open = False

    def resume(self) -> Position | None:
        """Where to read from: the beginning of the oldest span that was open, or the last position sent."""
        with read_transaction(self._engine) as connection:
            self._sent, run_id = load_offset(connection, self._journal_id, OTLP_SINK)
            needed, _ = load_offset(connection, self._journal_id, OTLP_OPEN)
            found = None if run_id is None else runs.stored_run(connection, run_id)
        if run_id is not None and found is not None:
            self.run_id, self.run_open = run_id, True
            self._open = OpenSpans(run_id, found.clock, about_run(*found.about))
        return needed or self._sent

    def deliver(self, items: Sequence[Item]) -> Delivery:
        """Send the spans that end in these items, then note the position."""
        state, run_id, run_open = self._open.copy(), self.run_id, self.run_open
        spans: list[Span] = []
        delivered, lost, lost_spans = 0, 0, 0
        for item in items:
            known = self._sent is not None and item.position[:2] <= self._sent[:2]
            if isinstance(item, Gap):
                lost += 0 if known else item.lost_records
                continue
            if item.run_id != run_id:
                # One request speaks for one run; a pump's items are of one run, so this comes first or not at all.
                lost_spans += self._send(state, [*spans, *state.lose_all()])
                spans, run_id, run_open = [], item.run_id, True
                state = OpenSpans(run_id, RunClock(item.wall_ns, item.monotonic_ns))
            ended, failed = state.add(item.records, item.start)
            if any(isinstance(record, RunEnded) for record in item.records):
                ended, run_open = [*ended, *state.lose_all()], False
            if not known:
                spans.extend(ended)
                delivered += len(item.records) - failed
                lost += failed
                lost_spans += failed
        lost_spans += self._send(state, spans)
        self._open, self.run_id, self.run_open = state, run_id, run_open
        if self._sent is None or items[-1].position[:2] > self._sent[:2]:
            self._sent = items[-1].position
            self._unsaved = _Progress(self._sent, state.oldest() or self._sent)
            self._save()
        return Delivery(delivered, lost, lost_spans)

    def close_lost_run(self) -> None:
        """The writer is gone without a last word: what is open ends as lost."""
        state = self._open.copy()
        self._send(state, state.lose_all())
        self._open, self.run_open = state, False
        if self._sent is not None:
            self._unsaved = _Progress(self._sent, self._sent)
            self._save()

    def idle(self) -> None:
        """Note a position that could not be noted before."""
        self._save()

    def needed_segment(self, position: Position) -> int:
        """The oldest segment that a restart reads again."""
        return min(position.segment, (self._open.oldest() or position).segment)

    def _send(self, owner: OpenSpans, spans: Sequence[Span]) -> int:
        """Returns how many the collector refused for good."""
        return self._collector.send(resource(owner.run_id, owner.about), spans)

    def _save(self) -> None:
        """Positions into the store. A store that is down delays only the note: a restart then sends again."""
        if self._unsaved is None:
            return
        try:
            with write_transaction(self._engine) as connection:
                store_offset(connection, self._journal_id, OTLP_SINK, self._unsaved.sent, self.run_id)
                store_offset(connection, self._journal_id, OTLP_OPEN, self._unsaved.needed, self.run_id)
        except (StoreError, sa.exc.SQLAlchemyError) as error:
            log.debug("the span offset cannot be stored now: %s", error)
            return
        self._unsaved = None
