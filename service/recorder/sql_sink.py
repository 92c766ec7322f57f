"""The SQL sink: one transaction holds a batch's rows and the journal offset behind them.

A restart therefore neither loses nor repeats a row. A record that the database refuses is set aside, counted, and noted
in trace_gaps; the rest of its batch is stored.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from service.journal.reader import Batch, Gap, Position
from service.journal.records import PackedPlan, PlanCommitted, Record, RunStarted
from service.recorder import runs
from service.recorder.clock import RunClock
from service.recorder.copying import PostgresqlWriter
from service.recorder.isolation import IsolatingStore, Refusal
from service.recorder.offsets import SQL_SINK, drop_offsets, load_offset, store_offset
from service.recorder.pump import Delivery, Item
from service.recorder.rows import RowBuilder, text
from service.recorder.statements import SqliteWriter, StoreWriter
from service.store.database import write_transaction
from service.store.engines import read_transaction
from service.store.tables import engine_runs, trace_gaps

_REASON_CHARACTERS = 500


def _is_postgresql(engine: sa.Engine) -> bool:
    return engine.dialect.name == "postgresql"


def _no_step(_name: str) -> None:
    pass


class SqlSink:
    """Writes batches and gaps of one journal.

    `switched_off`: other sinks, whose offsets are forgotten. `step` is called with a name before each step of a
    transaction; tests stop there. Every method raises StoreError when the database cannot be used.
    """

    name = SQL_SINK

    def __init__(
        self,
        engine: sa.Engine,
        journal_id: str,
        *,
        switched_off: tuple[str, ...] = (),
        step: Callable[[str], None] = _no_step,
    ) -> None:
        self._engine = engine
        self._journal_id = journal_id
        self._writer: StoreWriter = (PostgresqlWriter if _is_postgresql(engine) else SqliteWriter)(engine.dialect)
        self._records = IsolatingStore(self._writer, step)
        self._step = step
        self._switched_off = switched_off
        self._clock: RunClock | None = None
        self._unsure = False
        self._has_gaps = False
        self.run_id: str | None = None
        self.run_open = False

    def resume(self) -> Position | None:
        """Where the last committed transaction ended; loads the run that it was in."""
        position = self._load()
        if self._switched_off:
            with write_transaction(self._engine) as connection:
                drop_offsets(connection, self._journal_id, *self._switched_off)
        return position

    def deliver(self, items: Sequence[Item]) -> Delivery:
        """Store items of one run (gaps before its first batch may belong to an earlier one).

        When it raises, call it again with the same items: all of them are stored by then, or none.
        """
        # The answer to a commit may have been lost with the connection: what is stored must not be stored again.
        if self._unsure and self._load() == items[-1].position:
            records = sum(len(item.records) for item in items if isinstance(item, Batch))
            done = Delivery(records, sum(item.lost_records for item in items if isinstance(item, Gap)))
        else:
            self._unsure = True
            done = self._store(items)
        self._unsure = False
        return done

    def _load(self) -> Position | None:
        """The position that the store has, and the run that it is in."""
        with read_transaction(self._engine) as connection:
            position, run_id = load_offset(connection, self._journal_id, SQL_SINK)
            self.run_id = run_id
            self._clock = None if run_id is None else runs.stored_clock(connection, run_id)
            self.run_open = run_id is not None and _is_open(connection, run_id)
            self._has_gaps = run_id is not None and runs.has_gaps(connection, run_id)
        return position

    def _store(self, items: Sequence[Item]) -> Delivery:
        """The items and the offset behind them in one transaction."""
        batches = [item for item in items if isinstance(item, Batch)]
        records = [record for batch in batches for record in batch.records]
        refused: list[Refusal] = []
        run_id, clock, run_open, has_gaps = self.run_id, self._clock, self.run_open, self._has_gaps
        missing = sum(item.lost_records for item in items if isinstance(item, Gap))
        self._step("begin")
        with write_transaction(self._engine) as connection:
            self._writer.prepare(connection)
            for item in items:
                if isinstance(item, Gap):
                    self._store_gap(connection, item)
            if batches and batches[0].run_id != run_id:
                if run_id is not None and clock is not None:
                    self._step("close the run before")
                    runs.close_run(connection, run_id, clock)
                run_id, run_open, has_gaps = batches[0].run_id, True, False
                self._step("open the run")
                clock = self._run_clock(connection, batches)
            has_gaps = has_gaps or any(isinstance(item, Gap) and item.run_id == run_id for item in items)
            if batches:
                assert run_id is not None
                assert clock is not None
                build = RowBuilder(run_id, clock, self._writer.values)
                refused, ended = self._records.store(connection, build, records)
                self._note_refused(connection, run_id, clock, refused)
                has_gaps = has_gaps or bool(refused)
                if has_gaps:
                    bad = {id(refusal.record) for refusal in refused}
                    runs.lose_overtaken(connection, run_id, [record for record in records if id(record) not in bad])
                if ended is not None:
                    self._step("end of run")
                    runs.close_run(connection, run_id, clock, ended.ended_ns, text(ended.reason))
                    run_open = False
            self._step("offset")
            store_offset(connection, self._journal_id, SQL_SINK, items[-1].position, run_id)
            self._step("commit")
        self._step("committed")
        self.run_id, self._clock, self.run_open, self._has_gaps = run_id, clock, run_open, has_gaps
        return Delivery(len(records) - len(refused), missing + len(refused))

    def close_lost_run(self) -> None:
        """The current run's writer is gone without a last word: its plans in flight are lost. Idempotent."""
        if self.run_id is not None and self._clock is not None and self.run_open:
            self._step("begin")
            with write_transaction(self._engine) as connection:
                runs.close_run(connection, self.run_id, self._clock)
                self._step("commit")
        self.run_open = False

    def idle(self) -> None:
        """Nothing to do between batches."""

    def needed_segment(self, position: Position) -> int:
        """The oldest segment that this sink may still read."""
        return position.segment

    def _run_clock(self, connection: sa.Connection, batches: list[Batch]) -> RunClock:
        """The run's clock: from its start, from the store, or from the segment's header with a placeholder row."""
        run_id = batches[0].run_id
        header = RunClock(batches[0].wall_ns, batches[0].monotonic_ns)
        started = runs.clock_in(batches)
        if started is not None:
            return started if started.usable() else header
        clock = runs.stored_clock(connection, run_id)
        if clock is None:
            runs.insert_placeholder(connection, run_id, header)
        return clock or header

    def _note_refused(
        self, connection: sa.Connection, run_id: str, clock: RunClock, refused: Sequence[Refusal]
    ) -> None:
        """A gap for each refused record; a run whose start is among them still gets a row."""
        for record, error in refused:
            self._store_gap(connection, _gap_of(run_id, record, error))
            if isinstance(record, RunStarted) and runs.stored_clock(connection, run_id) is None:
                runs.insert_placeholder(connection, run_id, clock)

    def _store_gap(self, connection: sa.Connection, gap: Gap) -> None:
        self._step("gap")
        start, end = gap.from_fence, gap.to_fence
        if start is None and end is not None:
            known = runs.last_fence(connection, gap.run_id)
            start = 1 if known is None else known + 1
            start = start if start <= end else None
        count = f" ({gap.lost_records} records)" if gap.lost_records else ""
        connection.execute(
            trace_gaps.insert().values(
                run_id=gap.run_id,
                from_fence=start,
                to_fence=end if start is not None else None,
                noticed_at=dt.datetime.now(dt.UTC),
                reason=text(gap.reason + count),
            )
        )


def _gap_of(run_id: str, record: Record, error: Exception) -> Gap:
    """The gap that a record leaves which the database refused."""
    fence = getattr(record, "fence", None)
    fence = fence if isinstance(fence, int) and abs(fence) < 2**63 else None
    cause = str(getattr(error, "orig", error))[:_REASON_CHARACTERS]
    kind = PlanCommitted if isinstance(record, PackedPlan) else type(record)
    reason = f"a {kind.__name__} record could not be stored: {cause}"
    return Gap(reason, run_id, fence, fence, 1, Position(0, 0, 0))


def _is_open(connection: sa.Connection, run_id: str) -> bool:
    found = connection.execute(sa.select(engine_runs.c.ended_at).where(engine_runs.c.run_id == run_id)).one_or_none()
    return found is not None and found[0] is None
