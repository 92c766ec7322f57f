"""The last minute: read from SQL on both databases, told in plain words."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest
import sqlalchemy as sa
from factories import fill_store

from dashboard.minute import KindShare, Minute, SlowStart, percentile, read_minute
from dashboard.pages.timeline.minute import minute_lines
from service.store.engines import write_transaction
from service.store.tables import plans, requests

NOTHING = Minute([], {}, [], [], None, 0, None)


def text_of(found: Minute) -> str:
    return " ".join(f"{line.heading}: {line.text}" for line in minute_lines(found))


def test_it_holds_the_plans_tokens_and_starts_of_the_minute(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=8)
    found = read_minute(any_store, filled.last_at)
    since = filled.last_at - dt.timedelta(minutes=1)
    with any_store.connect() as connection:
        recent = sa.select(sa.func.count(), sa.func.sum(plans.c.output_tokens)).where(plans.c.committed_at >= since)
        count, tokens = connection.execute(recent).one()
        begun = sa.select(sa.func.count()).select_from(requests).where(requests.c.first_output_at >= since)
        started = connection.execute(begun).scalar_one()
    assert sum(kind.plans for kind in found.kinds) == sum(found.reasons.values()) == count
    assert sum(kind.output_tokens for kind in found.kinds) == tokens
    assert len(found.starts_ms) == started > 0
    assert found.slowest is not None
    assert found.slowest.start_ms == found.starts_ms[-1]
    assert found.slowest.queue_ms is not None
    assert 0 <= found.slowest.queue_ms <= found.slowest.start_ms


def test_an_hour_later_nothing_has_happened(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=8)
    found = read_minute(any_store, filled.last_at + dt.timedelta(hours=1))
    assert (found.kinds, found.starts_ms, found.slowest) == ([], [], None)


def test_only_requests_of_the_running_engine_without_a_graph_wait(any_store: sa.Engine) -> None:
    filled = fill_store(any_store, plans=60, requests=8)
    now = filled.last_at + dt.timedelta(seconds=10)
    with write_transaction(any_store) as connection:
        row = dict(connection.execute(sa.select(requests).limit(1)).mappings().one())
        row |= {"finished_at": None, "first_output_at": None, "finish_reason": None}
        for name, run, age_s in (("new", 1, 3), ("older", 1, 7), ("of-a-dead-run", 0, 9)):
            times = {"arrived_at": now - dt.timedelta(seconds=age_s)}
            connection.execute(requests.insert(), {**row, **times, "run_id": filled.run_ids[run], "request_id": name})
    found = read_minute(any_store, now)
    assert (found.waiting, found.oldest_wait_ms) == (2, 7000.0)


def test_the_reads_of_each_second_search_by_index(store: sa.Engine) -> None:
    filled = fill_store(store, plans=60, requests=8)
    asked: list[tuple[str, object]] = []

    @sa.event.listens_for(store, "before_cursor_execute")
    def note(_c: object, _cursor: object, statement: str, values: object, _x: object, _many: object) -> None:
        if statement.lstrip().upper().startswith("SELECT"):
            asked.append((statement, values))

    read_minute(store, filled.last_at)
    sa.event.remove(store, "before_cursor_execute", note)
    with store.connect() as connection:
        steps = [
            str(row[3])
            for statement, values in asked
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)  # type: ignore[arg-type]
        ]
    assert len(asked) >= 5
    scans = [step for step in steps if step.startswith("SCAN") and "INDEX" not in step and "(subquery" not in step]
    assert scans == []


def test_an_idle_minute_is_told_in_two_lines() -> None:
    assert text_of(NOTHING) == (
        "What ran: Nothing: no plan was chosen, the device was idle. Waiting now: No request waits for its first graph."
    )


def test_a_busy_minute_says_what_ran_why_and_who_waited() -> None:
    found = Minute(
        kinds=[KindShare("decode", 300, 24_000.0, 0, 900), KindShare("prefill", 12, 6_000.0, 2_400, 12)],
        reasons={"ordinary": 310, "discovery": 2},
        versions=[2, 3],
        starts_ms=[100.0, 200.0, 3_000.0],
        slowest=SlowStart("req-9", 3_000.0, 1_000.0, 2.0, 412, finished=True),
        waiting=2,
        oldest_wait_ms=4_000.0,
    )
    text = text_of(found)
    for words in (
        "300 decode plans kept the device busy 40 % of the time, 12 prefill plans kept the device",
        "; 50 % in all.",
        "310 had the best score, 2 ran to be measured for the first time; under policy versions 2 and 3.",
        "2,400 prompt tokens read, 912 output tokens made.",
        "3 requests got their first token: half within 200 ms, 99 % within 3.0 s of arriving.",
        "req-9 took 3.0 s: 1.0 s until its first graph (2.00 ms of it tokenizing), then 2.0 s for its 412 prompt",
        "2 requests have been in no graph yet; the oldest arrived 4.0 s ago.",
    ):
        assert words in text
    assert "1 request has been in no graph yet; it arrived" in text_of(dataclasses.replace(found, waiting=1))


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.99, 4.0), (0.01, 1.0), (1.0, 4.0)])
def test_percentiles_are_values_that_occurred(share: float, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], share) == value
