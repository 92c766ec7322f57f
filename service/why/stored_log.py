"""The decision log of one run as the store holds it, read a row at a time and without a hole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from service.store.decision_log import DamagedBlob, unpack_calls, unpack_state
from service.store.engines import read_transaction
from service.store.tables import decision_log
from service.why.errors import NotReplayable

_c = decision_log.c


class Checkpoint(NamedTuple):
    """The scheduler's state behind `last_fence`; entry number `call` of the log."""

    call: int
    last_fence: int
    state: bytes


class Calls(NamedTuple):
    """Consecutive entries of the log, the first of them number `first_call`."""

    first_call: int
    entries: list[Any]


class StoredLog:
    """The log of run `run_id`. Methods raise NotReplayable for what is not there, and StoreError."""

    def __init__(self, engine: sa.Engine, run_id: str) -> None:
        self._engine = engine
        self.run_id = run_id

    def checkpoint_before(self, fence: int) -> Checkpoint:
        """The last checkpoint from which the decision of `fence` can be replayed."""
        row = self._row(_c.is_checkpoint & (_c.last_fence < fence), _c.first_call.desc())
        if row is not None:
            return _checkpoint(row)
        first = self._row(_c.is_checkpoint, _c.first_call)
        if first is None:
            raise NotReplayable(
                f"run {self.run_id} has no decision log: it was pruned, or recorded by a version that kept none"
            )
        raise NotReplayable(
            f"the decision log before fence {fence} was pruned or lost; decisions from fence {first.last_fence + 1} on "
            "can be re-executed"
        )

    def next_checkpoint(self, call: int) -> Checkpoint | None:
        """The first checkpoint behind entry `call` that is whole."""
        while (row := self._row(_c.is_checkpoint & (_c.first_call > call), _c.first_call)) is not None:
            with contextlib.suppress(NotReplayable):
                return _checkpoint(row)
            call = row.first_call
        return None

    def behind(self, checkpoint: Checkpoint) -> Iterator[Calls | Checkpoint]:
        """What follows a checkpoint, in order, to the log's end; raises NotReplayable where entries are missing."""
        call, fence = checkpoint.call + 1, checkpoint.last_fence
        while (row := self._row(_c.first_call == call, _c.first_call)) is not None:
            fence = max(fence, row.last_fence)
            yield _checkpoint(row) if row.is_checkpoint else _calls(row)
            call += row.calls
        later = self._row(_c.first_call > call, _c.first_call)
        if later is not None:
            after = self.next_checkpoint(call)
            again = "none behind them" if after is None else f"those from fence {after.last_fence + 1} on"
            raise NotReplayable(
                f"entries {call} to {later.first_call - 1} of the decision log are missing behind fence {fence}, as "
                f"after a full disk or a lost part of the journal; of the decisions {again} can be re-executed"
            )

    def _row(self, condition: Any, order: Any) -> Any:
        query = sa.select(decision_log).where(_c.run_id == self.run_id, condition).order_by(order).limit(1)
        with read_transaction(self._engine) as connection:
            return connection.execute(query).one_or_none()


def _checkpoint(row: Any) -> Checkpoint:
    try:
        return Checkpoint(row.first_call, row.last_fence, unpack_state(row.blob))
    except DamagedBlob as error:
        raise NotReplayable(f"the checkpoint behind fence {row.last_fence} is damaged: {error}") from error


def _calls(row: Any) -> Calls:
    try:
        entries = [entry for piece in unpack_calls(row.blob) for entry in msgspec.msgpack.decode(piece)]
    except (DamagedBlob, msgspec.MsgspecError, TypeError, UnicodeDecodeError, RecursionError) as error:
        raise NotReplayable(f"the decision log of fences {row.first_fence} to {row.last_fence} is damaged") from error
    if len(entries) != row.calls:
        raise NotReplayable(
            f"the decision log of fences {row.first_fence} to {row.last_fence} is damaged: it holds {len(entries)} "
            f"entries and should hold {row.calls}"
        )
    return Calls(row.first_call, entries)
