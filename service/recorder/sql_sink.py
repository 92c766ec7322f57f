"""The SQL sink: one transaction holds a batch's rows and the journal offset behind them.

A restart therefore neither loses nor repeats a row. A record that the database refuses is set aside by a
savepoint, counted, and noted in trace_gaps; the rest of its batch is stored.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from service.journal.reader import Batch, Gap, Position
from service.journal.records import Record, RunEnded
from service.recorder import runs
from service.recorder.clock import RunClock
from service.recorder.errors import blames_record
from service.recorder.offsets import SQL_SINK, drop_offsets, load_offset, store_offset
from service.recorder.pump import Delivery, Item
from service.recorder.staging import RunMemory, Staging
from service.recorder.statements import Statements
from service.store.database import write_transaction
from service.store.engines import read_transaction
from service.store.tables import engine_runs, trace_gaps

_REASON_CHARACTERS = 500


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
        self._statements = Statements(engine.dialect)
        self._sqlite = engine.dialect.name == "sqlite"
        self._step = step
        self._switched_off = switched_off
        self._memory = RunMemory()
        self._clock: RunClock | None = None
        self.run_id: str | None = None
        self.run_open = False

    def resume(self) -> Position | None:
        """Where the last committed transaction ended; loads the run that it was in."""
        with read_transaction(self._engine) as connection:
            position, run_id = load_offset(connection, self._journal_id, SQL_SINK)
            self.run_id = run_id
            self._clock = None if run_id is None else runs.stored_clock(connection, run_id)
            self.run_open = run_id is not None and _is_open(connection, run_id)
        if self._switched_off:
            with write_transaction(self._engine) as connection:
                drop_offsets(connection, self._journal_id, *self._switched_off)
        return position

    def deliver(self, items: Sequence[Item]) -> Delivery:
        """Store items of one run (gaps before its first batch may belong to an earlier one).

        Nothing is changed when it raises.
        """
        batches = [item for item in items if isinstance(item, Batch)]
        count = sum(len(batch.records) for batch in batches)
        failed = 0
        memory = self._memory
        run_id, clock, run_open = self.run_id, self._clock, self.run_open
        missing = sum(item.lost_records for item in items if isinstance(item, Gap))
        self._step("begin")
        with write_transaction(self._engine) as connection:
            for item in items:
                if isinstance(item, Gap):
                    self._store_gap(connection, item)
            if batches and batches[0].run_id != run_id:
                memory = RunMemory()
                if run_id is not None and clock is not None:
                    self._step("close the run before")
                    runs.close_run(connection, run_id, clock)
                run_id, run_open = batches[0].run_id, True
                self._step("open the run")
                clock = self._run_clock(connection, batches)
            if batches:
                assert run_id is not None
                assert clock is not None
                records = [record for batch in batches for record in batch.records]
                self._step("rows")
                failed, ended, memory = self._store(connection, run_id, clock, memory, records)
                if ended is not None:
                    self._step("end of run")
                    runs.close_run(connection, run_id, clock, ended.ended_ns, ended.reason)
                    run_open = False
            self._step("offset")
            store_offset(connection, self._journal_id, SQL_SINK, items[-1].position, run_id)
            self._step("commit")
        self._step("committed")
        self.run_id, self._clock, self.run_open, self._memory = run_id, clock, run_open, memory
        return Delivery(count - failed, missing + failed)

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
        clock = runs.clock_in(batches) or runs.stored_clock(connection, run_id)
        if clock is None:
            clock = RunClock(batches[0].wall_ns, batches[0].monotonic_ns)
            runs.insert_placeholder(connection, run_id, clock)
        return clock

    def _store(
        self, connection: sa.Connection, run_id: str, clock: RunClock, memory: RunMemory, records: list[Record]
    ) -> tuple[int, RunEnded | None, RunMemory]:
        """All records at once; one at a time when one of them is bad.

        Returns how many were bad, the run's end, and what to remember.
        """
        at = clock.text if self._sqlite else clock.aware
        fresh = memory.copy()
        staging = Staging(run_id, at, fresh)
        try:
            for record in records:
                staging.add(record)
            with connection.begin_nested():
                staging.execute(connection, self._statements)
        except Exception as error:
            if not blames_record(error):
                raise
        else:
            return 0, staging.ended, fresh
        failed, ended, fresh = 0, None, memory.copy()
        for record in records:
            self._step("row")
            staging = Staging(run_id, at, fresh)
            try:
                staging.add(record)
                with connection.begin_nested():
                    staging.execute(connection, self._statements)
                ended = staging.ended or ended
            except Exception as error:
                if not blames_record(error):
                    raise
                failed += 1
                self._store_gap(connection, _refused(run_id, record, error))
        return failed, ended, fresh

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
                reason=gap.reason + count,
            )
        )


def _refused(run_id: str, record: Record, error: Exception) -> Gap:
    """The gap that a record leaves which the database refused."""
    fence = getattr(record, "fence", None)
    fence = fence if isinstance(fence, int) and abs(fence) < 2**63 else None
    cause = str(getattr(error, "orig", error)).replace("\0", "\ufffd")[:_REASON_CHARACTERS]
    reason = f"a {type(record).__name__} record could not be stored: {cause}"
    return Gap(reason, run_id, fence, fence, 1, Position(0, 0, 0))


def _is_open(connection: sa.Connection, run_id: str) -> bool:
    found = connection.execute(sa.select(engine_runs.c.ended_at).where(engine_runs.c.run_id == run_id)).one_or_none()
    return found is not None and found[0] is None
