"""The OTLP sink: spans of the same records, with an offset of its own.

A span is sent when its plan or request ends. What is still open is kept in memory; a second offset remembers where
the oldest open one begins, so a restart reads from there, sends nothing until it reaches the first offset, and then
goes on. Spans that were sent but not yet noted are sent again with the same ids.

While the collector is away the journal keeps what waits, up to a limit; beyond it the oldest spans are given up. Every
span that is lost is counted, and a row of trace_gaps says why, in the transaction that moves the offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from service.journal.reader import Batch, Gap, Position
from service.journal.records import PlanCompleted, RunEnded
from service.recorder import runs
from service.recorder.backlog import Backlog, SpanLoss
from service.recorder.clock import RunClock
from service.recorder.collector import Collector
from service.recorder.offsets import OTLP_OPEN, OTLP_SINK, load_offset, store_offset
from service.recorder.open_spans import OpenSpans, SpanOptions
from service.recorder.pump import Delivery, Item, SinkUnavailable
from service.store.database import write_transaction
from service.store.engines import read_transaction
from service.store.errors import StoreError
from service.telemetry.otlp import about_run, resource

log = logging.getLogger(__name__)

GIVEN_UP = "the collector was away for too long for --otlp-backlog"
REFUSED = "the collector refused them"
UNUSABLE = "their records hold a value that OTLP cannot"
MISSING = "their records are missing from the journal"


class _Progress(NamedTuple):
    """Positions that are not in the store yet."""

    sent: Position
    needed: Position


class _Lost(NamedTuple):
    """Spans that a delivery loses, and the plans among them where that is known."""

    run_id: str | None
    reason: str
    spans: int
    from_fence: int | None = None
    to_fence: int | None = None


class OtlpSink:
    """Sends spans to one collector. Methods raise SinkUnavailable or StoreError, having changed nothing here.

    Without `backlog` nothing is ever given up for a collector that is away.
    """

    name = OTLP_SINK

    def __init__(
        self,
        engine: sa.Engine,
        journal_id: str,
        collector: Collector,
        backlog: Backlog | None = None,
        options: SpanOptions | None = None,
    ) -> None:
        self._engine = engine
        self._journal_id = journal_id
        self._collector = collector
        self._backlog = backlog
        self._options = options or SpanOptions()
        self._open = OpenSpans("", RunClock(0, 0), None, self._options)
        self._sent: Position | None = None
        self._unsaved: _Progress | None = None
        self._losses: dict[tuple[str | None, str], SpanLoss] = {}
        self._undeclared: set[tuple[str | None, str]] = set()
        self._away = False
        self._uncounted = 0
        self._resumed: str | None = None
        self.run_id: str | None = None
        self.run_open = False

    def resume(self) -> Position | None:
        """Where to read from: the beginning of the oldest span that was open, or the last position sent."""
        with read_transaction(self._engine) as connection:
            self._sent, run_id = load_offset(connection, self._journal_id, OTLP_SINK)
            self._resumed = run_id
            needed, _ = load_offset(connection, self._journal_id, OTLP_OPEN)
            found = None if run_id is None else runs.stored_run(connection, run_id)
        if run_id is not None and found is not None:
            self.run_id, self.run_open = run_id, True
            self._open = OpenSpans(run_id, found.clock, about_run(*found.about), self._options, whole=True)
        return needed or self._sent

    def deliver(self, items: Sequence[Item]) -> Delivery:
        """Send the spans that end in these items, then note the position."""
        state, run_id, run_open = self._open.copy(), self.run_id, self.run_open
        spans: list[bytes] = []
        lost: list[_Lost] = []
        delivered, lost_records = 0, 0
        for item in items:
            known = self._sent is not None and item.position[:2] <= self._sent[:2]
            if isinstance(item, Gap):
                if not known:
                    lost_records += item.lost_records
                    lost += _lost_in(item)
                continue
            if item.run_id != run_id:
                # One request speaks for one run; a pump's items are of one run, so this comes first or not at all.
                rest = state.lose_all()
                lost += [*self._send(state, [*spans, *rest.spans], items), _Lost(run_id, UNUSABLE, rest.failed)]
                spans, run_id, run_open = [], item.run_id, True
                clock, whole = RunClock(item.wall_ns, item.monotonic_ns), run_id == self._resumed
                state = OpenSpans(run_id, clock, None, self._options, whole)
            ended, failed, headless = state.add(item.records, item.start)
            unusable = failed
            if any(isinstance(record, RunEnded) for record in item.records):
                rest, run_open = state.lose_all(), False
                ended, unusable = [*ended, *rest.spans], unusable + rest.failed
            if not known:
                spans.extend(ended)
                delivered += len(item.records) - failed
                lost_records += failed
                lost += [_Lost(run_id, UNUSABLE, unusable), _Lost(run_id, MISSING, headless)]
        lost += self._send(state, spans, items)
        self._open, self.run_id, self.run_open = state, run_id, run_open
        self._note(lost)
        if self._sent is None or items[-1].position[:2] > self._sent[:2]:
            self._sent = items[-1].position
            self._unsaved = _Progress(self._sent, self._needed(self._sent))
            self._save()
        lost_spans = self._uncounted + sum(one.spans for one in lost)
        self._uncounted = 0
        return Delivery(delivered, lost_records, lost_spans)

    def close_lost_run(self) -> None:
        """The writer is gone without a last word: what is open ends as lost."""
        state = self._open.copy()
        rest = state.lose_all()
        lost = [*self._send(state, rest.spans, ()), _Lost(self.run_id, UNUSABLE, rest.failed)]
        self._note(lost)
        self._uncounted += sum(one.spans for one in lost)  # with the next delivery
        self._open, self.run_open = state, False
        if self._sent is not None:
            self._unsaved = _Progress(self._sent, self._sent)
            self._save()

    def idle(self) -> None:
        """Note a position that could not be noted before."""
        self._save()

    def needed_segment(self, position: Position) -> int:
        """The oldest segment that a restart reads again."""
        return min(position.segment, self._needed(position).segment)

    def _needed(self, position: Position) -> Position:
        """Where the oldest open span begins, unless that would keep more of the journal than is allowed."""
        oldest = self._open.oldest()
        if oldest is None or (self._backlog is not None and self._backlog.exceeded(oldest.segment)):
            return position
        return min(oldest, position)

    def _send(self, owner: OpenSpans, spans: Sequence[bytes], items: Sequence[Item]) -> list[_Lost]:
        """Returns what is lost of them. Raises SinkUnavailable while the rest of the journal may wait."""
        if not spans:
            return []
        if not (self._away and self._too_much_waits(items)):
            try:
                refused = self._collector.send(resource(owner.run_id, owner.about, self._options.resource), spans)
                self._away = False
                return [_Lost(owner.run_id, REFUSED, refused, *_fences(items))] if refused else []
            except SinkUnavailable:
                self._away = True
                if not self._too_much_waits(items):
                    raise
        return [_Lost(owner.run_id, GIVEN_UP, len(spans), *_fences(items))]

    def _too_much_waits(self, items: Sequence[Item]) -> bool:
        first = self._sent or (items[0].position if items else None)
        return self._backlog is not None and first is not None and self._backlog.exceeded(first.segment)

    def _note(self, lost: Sequence[_Lost]) -> None:
        for run_id, reason, spans, from_fence, to_fence in lost:
            if spans:
                loss = self._losses.setdefault((run_id, reason), SpanLoss(run_id, reason))
                if not loss.spans:
                    log.warning("spans are lost: %s", reason)
                loss.add(spans, from_fence, to_fence)
                self._undeclared.add((run_id, reason))

    def _save(self) -> None:
        """Positions and losses into the store. One that is down delays only the note: a restart then sends again."""
        if self._unsaved is None:
            return
        losses = [self._losses[key] for key in self._undeclared]
        try:
            with write_transaction(self._engine) as connection:
                store_offset(connection, self._journal_id, OTLP_SINK, self._unsaved.sent, self.run_id)
                store_offset(connection, self._journal_id, OTLP_OPEN, self._unsaved.needed, self.run_id)
                rows = [loss.store(connection) for loss in losses]
        except (StoreError, sa.exc.SQLAlchemyError) as error:
            log.debug("the span offset cannot be stored now: %s", error)
            return
        for loss, row in zip(losses, rows, strict=True):
            loss.row = row
        self._undeclared.clear()
        self._unsaved = None


def _lost_in(gap: Gap) -> Iterator[_Lost]:
    """The plans whose records a gap takes; how many requests ended in it is not known."""
    plans = 0 if gap.from_fence is None or gap.to_fence is None else gap.to_fence - gap.from_fence + 1
    spans = max(plans, 1 if gap.lost_records else 0)
    if spans:
        yield _Lost(gap.run_id, MISSING, spans, gap.from_fence, gap.to_fence)


def _fences(items: Sequence[Item]) -> tuple[int | None, int | None]:
    """The first and last plan that completes in these items."""
    batches = [item for item in items if isinstance(item, Batch)]
    found = [record.fence for item in batches for record in item.records if isinstance(record, PlanCompleted)]
    return (min(found), max(found)) if found else (None, None)
