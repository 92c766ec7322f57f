"""Records become rows: every column, exactly once, whatever happens in between."""

from __future__ import annotations

import datetime as dt
import math
import pathlib
import shutil
import tempfile

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.journal.reader import JournalReader
from service.journal.records import OutputPublished, RequestArrived, SchedulerCalls, encoder
from service.recorder.clock import RunClock
from service.recorder.copying import PostgresqlWriter
from service.recorder.decision_log import LogChunks
from service.recorder.rows import RowBuilder
from service.recorder.sql_sink import SqlSink
from service.recorder.statements import INSERTS, SqliteWriter
from service.recorder.values import postgresql_values, sqlite_values
from service.store.database import open_database, write_transaction
from service.store.tables import (
    engine_runs,
    journal_offsets,
    metadata,
    plan_alternatives,
    plan_lanes,
    plan_minutes,
    plans,
    policy_applications,
    requests,
    trace_gaps,
)
from tests.recorder.crashing import Crash, crash_at


def wall(ms: float) -> dt.datetime:
    return dt.datetime(2025, 10, 9, 8, 53, 20, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


@pytest.mark.parametrize("values", [sqlite_values(), postgresql_values()])
@pytest.mark.parametrize("ended", [False, True])
def test_every_row_builder_fills_every_column_in_the_tables_order(make, values, ended):
    build = RowBuilder("run-1", RunClock(make.WALL_NS, make.MONOTONIC_NS), values)
    plan = make.plan(1, ["a"])
    end = build.plan_end(make.completed(1, 1)) if ended else None
    chunks = LogChunks("run-1")
    chunks.add_calls(SchedulerCalls(0, 1, 1, 1, make.MONOTONIC_NS, b"data"))
    built = {
        "engine_runs": build.run_row(make.started()),
        "policy_applications": build.application_row(make.policy()),
        "requests": build.request_row(make.arrived("a"), finished=make.finished("a") if ended else None),
        "plans": build.plan_row(plan, end, 0),
        "plan_lanes": build.lane_rows(plan, [None], [None])[0],
        "plan_alternatives": build.alternative_row(1, plan.alternatives[0]),
        "decision_log": chunks.rows()[0],
    }
    for table in INSERTS:
        row = dict(zip([column.name for column in table.columns], built[table.name], strict=True))
        missing = [c.name for c in table.columns if row[c.name] is values.null and not c.nullable]
        assert missing == [], table.name


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_a_whole_run_is_stored(any_store, tmp_path, make, batch):
    make.write_frames(tmp_path / "journal", make.story())
    assert make.drain(any_store, tmp_path / "journal", batch) == 0
    (run,) = make.rows(any_store, engine_runs)
    assert run["started_at"] == wall(0)
    assert run["ended_at"] == wall(80)
    assert (run["end_reason"], run["host"], run["settings"]) == ("stopped", "host-1", {"port": 8000})
    (applied,) = make.rows(any_store, policy_applications)
    assert (applied["version"], applied["fence"], applied["applied_at"]) == (1, 0, wall(1))
    first, second = make.rows(any_store, requests)
    assert first["request_id"] == "request-0"
    assert first["arrived_at"] == wall(2)
    assert first["admitted_at"] == wall(3)
    assert first["first_output_at"] == wall(19)
    assert first["finished_at"] == wall(70)
    assert (first["prompt_tokens"], first["cached_tokens"], first["output_tokens"]) == (12, 4, 6)
    assert (first["finish_reason"], first["error"], first["preemptions"]) == ("stop", None, 0)
    phases = ("queue_ms", "tokenize_ms", "prefill_ms", "decode_ms", "publish_ms")
    assert [first[phase] for phase in phases] == [2.0, 0.4, 30.0, 50.0, 1.0]
    assert second["request_id"] == "request-1"


@pytest.mark.parametrize("batch", [1, 100])
def test_a_plan_is_stored_with_its_lanes_runners_up_and_outcome(any_store, tmp_path, make, batch):
    make.write_frames(tmp_path / "journal", make.story(fences=2))
    make.drain(any_store, tmp_path / "journal", batch)
    plan = make.rows(any_store, plans)[1]
    expected = {
        "fence": 2, "committed_at": wall(20), "committed_ns": make.at(20), "kind": "decode", "batch_capacity": 8,
        "target_rows": 8, "speculation_enabled": False, "reason": "ordinary", "score_kind": "rate", "value_rate": 3.5,
        "log_scale": 0.5, "token_value": 60.0, "delivery_value": 4.0, "age_relief": 1.5, "wait_cost": 0.25,
        "score_horizon_ms": 21.5, "active_rows": 2, "active_decoders": 2, "selected_cost_ms": 20.0,
        "observation_age_ms": 7.0, "margin": 0.25, "candidates": 4, "discovery_ms": 1.5, "queue_depth": 3,
        "frame_slot": 0, "policy_version": 1, "plan_us": 55.5, "started_ns": make.at(9), "completed_at": wall(28),
        "completed_ns": make.at(28), "outcome": "completed", "device_ms": 18.0, "wall_ms": 19.0,
        "exposed_delivery_ms": 0.0, "prompt_tokens": 6, "output_tokens": 2, "offered_tokens": 4, "draft_tokens": 6,
        "accepted_tokens": 2, "deliveries": 2,
    }  # fmt: skip
    assert {name: plan[name] for name in expected} == expected
    lanes = make.rows(any_store, plan_lanes)
    assert len(lanes) == 4
    lane = lanes[3]
    assert (lane["fence"], lane["lane"], lane["request_id"]) == (2, 1, "request-1")
    assert (lane["committed_tokens"], lane["delivered"], lane["published_ns"]) == (1, True, make.at(29))
    assert (lane["offered_tokens"], lane["accepted_tokens"]) == (2, 1)
    assert (lane["token_price"], lane["age_ms"], lane["lane_value"]) == (2.5, 12.0, 64.0)
    others = make.rows(any_store, plan_alternatives)
    assert [(o["fence"], o["rank"]) for o in others] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert (others[0]["kind"], others[0]["request_ids"]) == ("prefill", ["request-0"])
    assert (others[0]["barred_by"], others[0]["selected_cost_ms"]) == ("unmeasured", 9.0)


def test_a_plan_in_flight_has_no_tokens_yet(any_store, tmp_path, make):
    writer = make.JournalWriter(tmp_path / "journal", run_id="run-1", segment_bytes=64 << 10)
    writer.append([make.started(), make.arrived("a"), make.plan(1, ["a"])], 1)
    make.drain(any_store, tmp_path / "journal", close=False)
    (plan,) = make.rows(any_store, plans)
    assert plan["outcome"] == "in_flight"
    assert (plan["prompt_tokens"], plan["output_tokens"], plan["completed_at"]) == (0, 0, None)
    writer.close()


@pytest.mark.parametrize("batch", [1, 2, 100])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_request_in_flight_shows_the_tokens_it_has_so_far(any_store, tmp_path, make, batch, restarted):
    directory = tmp_path / "journal"
    writer = make.JournalWriter(directory, run_id="run-1", segment_bytes=64 << 10)
    frames = [[make.started(), make.arrived("a"), make.arrived("b"), make.plan(1, ["a", "b"])]]
    frames.append([make.completed(1, 2), make.published(1, 2), make.plan(2, ["a"], 30), make.completed(2, 1, 60)])
    frames.append([make.plan(3, ["b", "a"], 65)])
    for frame in frames:
        writer.append(frame, 1)
        if restarted:
            make.drain(any_store, directory, batch, close=False)
    make.drain(any_store, directory, batch, close=False)
    assert [row["output_tokens"] for row in make.rows(any_store, requests)] == [2, 1]
    writer.append([make.completed(3, 2, 80)], 3)
    make.drain(any_store, directory, batch, close=False)
    assert [row["output_tokens"] for row in make.rows(any_store, requests)] == [3, 2]
    writer.append([make.plan(4, ["a", "b"], 85), make.finished("a", 90, output_tokens=3)], 4)
    make.drain(any_store, directory, batch, close=False)
    writer.append([make.completed(4, 2, 99)], 4)  # what a finished request's last graph did is not counted
    make.drain(any_store, directory, batch, close=False)
    assert [row["output_tokens"] for row in make.rows(any_store, requests)] == [3, 3]
    writer.close()


def test_a_transaction_updates_a_running_request_once(any_store, tmp_path, make, monkeypatch):
    store = any_store
    updates: list[tuple[str, int]] = []

    def noting(real):
        def change(self, connection, name, rows):
            updates.append((name, len(rows)))
            return real(self, connection, name, rows)

        return change

    for writer in (SqliteWriter, PostgresqlWriter):
        monkeypatch.setattr(writer, "change", noting(writer.change))
    make.write_frames(tmp_path / "journal", [[make.started(), make.arrived("a")]])
    make.drain(store, tmp_path / "journal", close=False)
    frames = [[make.plan(f, ["a"], 10 * f), make.completed(f, 1, 10 * f + 5)] for f in range(1, 9)]
    make.write_frames(tmp_path / "journal", frames)
    make.drain(store, tmp_path / "journal", 100, close=False)
    assert [update for update in updates if "progress" in update[0]] == [("progress", 1)]
    assert make.rows(store, requests)[0]["output_tokens"] == 8


@pytest.mark.parametrize("successor", [True, False])
def test_a_run_that_was_killed_leaves_lost_plans_and_failed_requests(any_store, tmp_path, make, successor):
    frames = [
        [make.started(), make.arrived("a"), make.arrived("b", 2.5), make.plan(1, ["a"])],
        [make.completed(1, 1), make.published(1, 1), make.plan(2, ["a", "b"], 30)],
        [make.arrived("c", 50)],
    ]
    make.write_frames(tmp_path / "journal", frames)
    if successor:
        make.write_frames(tmp_path / "journal", make.story(run_id="run-2"), "run-2")
    make.drain(any_store, tmp_path / "journal", batch=2)
    first = make.rows(any_store, engine_runs)[0]
    assert (first["end_reason"], first["ended_at"]) == ("lost", wall(50))
    stored = [plan for plan in make.rows(any_store, plans) if plan["run_id"] == "run-1"]
    assert [plan["outcome"] for plan in stored] == ["completed", "lost"]
    failed = [request for request in make.rows(any_store, requests) if request["run_id"] == "run-1"]
    assert {(r["finish_reason"], r["error"], r["finished_at"]) for r in failed} == {("error", "engine lost", wall(50))}
    assert [r["output_tokens"] for r in failed] == [1, 0, 0]
    if successor:
        assert {r["finish_reason"] for r in make.rows(any_store, requests) if r["run_id"] == "run-2"} == {"stop"}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(crashes=st.lists(st.integers(0, 60), max_size=5), batch=st.integers(1, 9), bad=st.booleans())
def test_a_recorder_killed_anywhere_neither_loses_nor_repeats_a_row(make, sqlite_url, crashes, batch, bad):
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        frames = make.story(3)
        if bad:
            frames[4].append(make.arrived("bad", max_tokens=2**63))
        make.write_frames(directory / "journal", frames[:-2])  # killed
        make.write_frames(directory / "journal", make.story(2, run_id="run-2"), "run-2")
        stores = []
        for database, stops in (("whole.db", []), ("crashed.db", crashes)):
            shutil.copy(sqlite_url.removeprefix("sqlite:///"), directory / database)
            engine = open_database(str(directory / database))
            for stop in stops:
                try:
                    make.drain(engine, directory / "journal", batch, step=crash_at(stop))
                except Crash:
                    engine.dispose()
            make.drain(engine, directory / "journal", batch)
            stores.append(make.contents(engine))
            engine.dispose()
        assert stores[1] == stores[0]
        assert len(stores[0]["plans"]) == 5
        assert len(stores[0]["trace_gaps"]) == bad


@pytest.mark.parametrize("answer", ["commit", "committed"])
def test_a_commit_whose_answer_was_lost_is_not_made_again(any_store, tmp_path, make, answer):
    def lose_the_answer(step):
        if step == answer and lost.pop(step, None):
            raise ConnectionError

    def stored():
        tables = (
            engine_runs,
            requests,
            plans,
            plan_lanes,
            plan_alternatives,
            plan_minutes,
            trace_gaps,
            journal_offsets,
        )
        return [[{**row, "updated_at": None} for row in make.rows(any_store, table)] for table in tables]

    make.write_frames(tmp_path, make.story())
    items, lost = make.batches(tmp_path), {}
    sink = SqlSink(any_store, JournalReader(tmp_path).journal_id, step=lose_the_answer)
    middle = len(items) // 2
    sink.deliver(items[:middle])
    for part in (items[middle : middle + 3], items[middle + 3 :]):
        lost[answer] = True
        with pytest.raises(ConnectionError):
            sink.deliver(part)
        assert sink.deliver(part) == (sum(len(item.records) for item in part), 0, 0)
    assert not sink.run_open
    found = stored()
    assert found[-2] == []
    empty(any_store)
    assert make.drain(any_store, tmp_path, len(items)) == 0
    assert found == stored()


def empty(engine):
    with write_transaction(engine) as connection:
        for table in metadata.tables.values():
            if table.name != "alembic_version":
                connection.execute(table.delete())


BAD = {
    "nan": lambda make: make.plan(2, ["a"], 30, score=math.nan),
    "infinite lane": lambda make: make.plan(2, ["a"], 30, lanes=[make.lane("a", token_price=math.inf)]),
    "large int": lambda make: make.arrived("bad", max_tokens=2**63),
    "large time": lambda make: make.plan(2, ["a"], 1e13),
    "repeated": lambda make: make.plan(1, ["a"], 30),
}


@pytest.mark.parametrize("kind", list(BAD))
def test_one_bad_record_costs_only_itself(any_store, tmp_path, make, kind):
    frames = [[make.started(), make.arrived("a"), make.plan(1, ["a"])]]
    record = BAD[kind](make)
    frames.append([make.completed(1, 1), record, make.published(1, 1), make.plan(3, ["a"], 40)])
    frames.append([make.finished("a")])
    make.write_frames(tmp_path / "journal", frames)
    assert make.drain(any_store, tmp_path / "journal", batch=1) == 1
    assert [plan["fence"] for plan in make.rows(any_store, plans)] == [1, 3]
    assert [lane["fence"] for lane in make.rows(any_store, plan_lanes)] == [1, 3]
    assert make.rows(any_store, plans)[0]["deliveries"] == 1
    (request,) = make.rows(any_store, requests)
    assert request["first_output_at"] == wall(26)
    (gap,) = make.rows(any_store, trace_gaps)
    assert "could not be stored" in gap["reason"]
    assert gap["from_fence"] == getattr(record, "fence", None)


def test_long_texts_nuls_and_numbers_that_may_be_missing_are_stored(any_store, tmp_path, make):
    long = "x" * 100_000
    frames = [
        [make.started(), make.arrived("a", prefix_key=long), make.arrived("b", model="m\0del")],
        [make.plan(1, ["a"], margin=math.nan), make.finished("b", error="nul \0 inside", finish_reason="error")],
    ]
    make.write_frames(tmp_path / "journal", frames, segment_bytes=1 << 20)
    assert make.drain(any_store, tmp_path / "journal") == 0
    first, second = make.rows(any_store, requests)
    assert first["prefix_key"] == long
    assert (second["model"], second["error"]) == ("m\ufffddel", "nul \ufffd inside")
    assert make.rows(any_store, plans)[0]["margin"] is None


def test_what_the_journal_lost_is_a_row_of_trace_gaps(any_store, tmp_path, make):
    directory = tmp_path / "journal"
    make.write_frames(directory, make.story(400), budget_bytes=128 << 10)
    lost = make.drain(any_store, directory)
    stored = len(make.rows(any_store, plans))
    assert 0 < stored < 400
    assert lost > 0
    gaps = make.rows(any_store, trace_gaps)
    assert len(gaps) == 1
    assert "budget" in gaps[0]["reason"]
    (run,) = make.rows(any_store, engine_runs)
    assert (run["host"], run["end_reason"]) == ("unknown", "stopped")


def test_a_damaged_frame_is_a_gap_with_its_fences(any_store, tmp_path, make):
    directory = tmp_path / "journal"
    make.write_frames(directory, make.story(6))
    path = directory / "segment-00000001.hj"
    data = bytearray(path.read_bytes())
    place = data.index(encoder.encode([make.plan(3, ["request-0", "request-1"], 30)]))
    data[place + 40] ^= 1
    path.write_bytes(data)
    assert make.drain(any_store, directory) == 1
    assert [plan["fence"] for plan in make.rows(any_store, plans)] == [1, 2, 4, 5, 6]
    (gap,) = make.rows(any_store, trace_gaps)
    assert (gap["run_id"], gap["from_fence"], gap["to_fence"]) == ("run-1", 3, 3)
    assert "damaged" in gap["reason"]


def test_the_offset_moves_in_the_same_transaction(store, tmp_path, make):
    make.write_frames(tmp_path / "journal", make.story(2))
    with pytest.raises(Crash):
        make.drain(
            store,
            tmp_path / "journal",
            100,
            step=lambda name: (_ for _ in ()).throw(Crash) if name == "commit" else None,
        )
    assert make.rows(store, plans) == []
    assert make.rows(store, journal_offsets) == []
    make.drain(store, tmp_path / "journal", 100)
    (offset,) = make.rows(store, journal_offsets)
    assert (offset["sink"], offset["segment"], offset["run_id"]) == ("sql", 1, "run-1")
    assert offset["sequence"] == sum(len(frame) for frame in make.story(2))


def test_rows_written_anywhere_are_found_by_utc_times(any_store, tmp_path, make):
    """C34: what the recorder writes is UTC, and a query in another zone finds it."""
    make.write_frames(tmp_path / "journal", make.story(2))
    make.drain(any_store, tmp_path / "journal")
    zone = dt.timezone(dt.timedelta(hours=-8))
    since, until = wall(5).astimezone(zone), wall(15).astimezone(zone)
    found = sa.select(plans.c.fence).where(plans.c.committed_at.between(since, until))
    with any_store.connect() as connection:
        assert list(connection.scalars(found)) == [1]


def test_a_publication_after_a_restart_still_finds_its_requests(store, tmp_path, make):
    frames = [
        [make.started(), make.arrived("a"), make.plan(1, ["a"])],
        [make.completed(1, 1), make.published(1, 1)],
    ]
    directory = tmp_path / "journal"
    writer = make.JournalWriter(directory, run_id="run-1", segment_bytes=64 << 10)
    writer.append(frames[0], 1)
    make.drain(store, directory)
    writer.append(frames[1], 1)
    make.drain(store, directory)
    writer.close()
    assert make.rows(store, requests)[0]["first_output_at"] == wall(26)


def test_a_hundred_thousand_characters_in_an_id_are_stored_or_counted(any_store, tmp_path, make):
    long = "".join(chr(0x4E00 + number * 7919 % 20000) for number in range(30_000))
    frames = [[make.started(), RequestArrived(long, "m", make.at(1), 0, 1, 1, None, None, None), make.arrived("a")]]
    frames.append([OutputPublished(99, make.at(3), [0])])
    make.write_frames(tmp_path / "journal", frames, segment_bytes=1 << 20)
    lost = make.drain(any_store, tmp_path / "journal")
    assert len(make.rows(any_store, requests)) == 2 - lost
