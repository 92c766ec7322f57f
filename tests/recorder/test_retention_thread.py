"""The recorder deletes on its own: beside its sinks, and never what it still writes to."""

from __future__ import annotations

import datetime as dt
import threading

import pytest
import sqlalchemy as sa

from service.recorder import retention as thread
from service.recorder.pump import SinkUnavailable
from service.recorder.retention import Retention
from service.store import retention
from service.store.engines import read_transaction
from service.store.errors import StoreBusy, StoreUnavailable
from service.store.retention import Limits, Pruned
from service.store.tables import plan_alternatives, plan_lanes, plans, requests

LATER = dt.datetime(2027, 1, 1, tzinfo=dt.UTC)


def counts(engine):
    with read_transaction(engine) as connection:
        tables = (plans, plan_lanes, plan_alternatives)
        return [connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in tables]


def make_retention(engine, days=1):
    return Retention(engine, Limits(days, 0), threading.Event(), lambda: LATER)


def turn_until_idle(one):
    waits = []
    while (wait := one.turn()) != thread.IDLE_S:
        waits.append(wait)
        assert len(waits) < 100
    return waits


@pytest.mark.parametrize("batch", [1, 3, 50])
def test_pruning_after_every_batch_ends_as_pruning_once_at_the_end(any_store, tmp_path, make, batch, monkeypatch):
    """Late ends and publications find their plans, so that requests are told all of their tokens."""
    monkeypatch.setattr(retention, "PLANS_KEPT", 2)
    make.write_frames(tmp_path, make.story(fences=8)[:-2])  # neither the requests' ends nor the run's
    one = make_retention(any_store)
    deletions = []

    def prune_after_each(name):
        if name == "committed":
            deletions.extend(turn_until_idle(one))

    make.drain(any_store, tmp_path, batch, close=False, step=prune_after_each)
    assert counts(any_store)[0] == 2
    assert len(deletions) >= (5 if batch == 1 else 1)
    assert {(row["request_id"], row["output_tokens"]) for row in make.rows(any_store, requests)} == {
        ("request-0", 8),
        ("request-1", 8),
    }


def test_nothing_is_deleted_that_is_in_flight_and_it_ends_as_ever(any_store, tmp_path, make, monkeypatch):
    monkeypatch.setattr(retention, "PLANS_KEPT", 0)
    frames = [[make.started(), make.arrived("a")], [make.plan(1, ["a"])], [make.plan(2, ["a"])], [make.completed(2, 1)]]
    make.write_frames(tmp_path, frames)
    make.drain(any_store, tmp_path, close=False)
    turn_until_idle(make_retention(any_store))
    assert [row["fence"] for row in make.rows(any_store, plans)] == [1]
    assert counts(any_store)[1] == 1


def test_a_busy_or_missing_database_is_tried_again_and_said_once(store, monkeypatch, caplog):
    one = make_retention(store)
    answers = iter(
        [StoreBusy("locked"), StoreUnavailable("gone"), StoreUnavailable("gone"), Pruned(), StoreUnavailable("again")]
    )

    def answer(*_):
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(retention, "prune_step", answer)
    assert [one.turn() for _ in range(5)] == [thread.RETRY_S] * 3 + [thread.IDLE_S, thread.RETRY_S]
    assert [record.args[0].args[0] for record in caplog.records] == ["gone", "again"]


def test_nothing_is_deleted_while_the_stores_log_must_not_grow(any_store, tmp_path, make):
    make.write_frames(tmp_path, make.story())
    make.drain(any_store, tmp_path)
    before = counts(any_store)
    answers = iter([SinkUnavailable("a reader keeps it"), None, None])

    def require_room():
        if (found := next(answers)) is not None:
            raise found

    one = Retention(any_store, Limits(1, 0), threading.Event(), lambda: LATER, require_room)
    assert (one.turn(), counts(any_store)) == (thread.RETRY_S, before)
    assert one.turn() != thread.RETRY_S
    assert counts(any_store)[0] < before[0]


def test_it_ends_when_the_recorder_stops(store):
    stop = threading.Event()
    one = Retention(store, Limits(1, 0), stop)
    runner = threading.Thread(target=one.run)
    runner.start()
    stop.set()
    runner.join(30)
    assert not runner.is_alive()
