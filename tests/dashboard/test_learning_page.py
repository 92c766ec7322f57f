"""Learning: acceptance by depth, forecasts, ledgers and their bound, probes, and what was discovered."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest
import sqlalchemy as sa
from factories import fill_store
from hypothesis import given
from hypothesis import strategies as st
from life_cases import AT, RUN, Case
from plain_minutes import completed_plans, write_minutes

from dashboard.figures.learning import depth_figure, reliability_figure
from dashboard.learned import FULL_MS, Bound, bounds, by_depth, corrections, reliability
from dashboard.pages import learning as page_module
from dashboard.pages.learning.words import acceptance_words, bound_words, discovery_words, timing_words
from dashboard.queries import learning as reads
from dashboard.queries import runs as run_reads
from dashboard.queries.costs import read_costs
from dashboard.queries.learning import BINS, binned, read_learning
from dashboard.span import Span
from scheduler.ledgers import ACCEPTANCE_DENOMINATOR, TIMING_DENOMINATOR, Ledger
from service.store.catalog import graph_label

SPAN = Span(AT - dt.timedelta(hours=1), AT + dt.timedelta(hours=1))
LANES = st.lists(
    st.tuples(st.sampled_from(["learned", "copy"]), st.integers(1, 6), st.integers(0, 6), st.floats(0, 1)), max_size=60
)


def grouped(lanes: list[tuple[str, int, int, float]]) -> list[dict[str, Any]]:
    """The lanes as the database groups them."""
    groups: dict[tuple[str, int, int, int], dict[str, Any]] = {}
    for source, offered, accepted, forecast in lanes:
        right, bin_ = min(accepted, offered), min(BINS - 1, int(forecast * BINS))
        key = (source, offered, right, bin_)
        row = groups.setdefault(
            key, {"source": source, "offered": offered, "accepted": right, "bin": bin_, "lanes": 0, "forecast": 0.0}
        )
        row["lanes"] += 1
        row["forecast"] += forecast
    return list(groups.values())


@given(LANES)
def test_acceptance_by_depth_is_that_of_every_lane_looked_at_alone(lanes: list[tuple[str, int, int, float]]) -> None:
    for row in by_depth(grouped(lanes)):
        own = [(o, min(a, o)) for s, o, a, _ in lanes if s == row["source"] and o >= row["depth"]]
        assert row["offered"] == len(own) > 0
        assert row["accepted"] == sum(accepted >= row["depth"] for _, accepted in own)
    depths = [(row["source"], row["depth"]) for row in by_depth(grouped(lanes))]
    assert len(depths) == len(set(depths))
    assert {source for source, _ in depths} == {source for source, *_ in lanes}


@given(LANES)
def test_reliability_counts_every_lane_once(lanes: list[tuple[str, int, int, float]]) -> None:
    rows = reliability(grouped(lanes))
    assert sum(row["lanes"] for row in rows) == len(lanes)
    for source in {row["source"] for row in rows}:
        own = [row for row in rows if row["source"] == source]
        plain = [min(a, o) / o for s, o, a, _ in lanes if s == source]
        assert sum(row["accepted"] * row["lanes"] for row in own) == pytest.approx(sum(plain))
        assert sum(row["forecast"] * row["lanes"] for row in own) == pytest.approx(
            sum(f for s, *_, f in lanes if s == source)
        )
    assert "<b>" not in str(reliability_figure([row | {"source": "<b>"} for row in rows]))


@given(
    st.sampled_from([TIMING_DENOMINATOR, ACCEPTANCE_DENOMINATOR]),
    st.lists(st.tuples(st.integers(0, 10**10), st.integers(1, 10**8)), max_size=60),
)
def test_a_ledger_that_keeps_its_rules_stays_within_the_bound(denominator: int, steps: list[tuple[int, int]]) -> None:
    ledger, largest = Ledger(denominator), 0
    name = "timing" if denominator == TIMING_DENOMINATOR else "acceptance"
    for ordinary_ns, charge_ns in steps:
        ledger.earn(ordinary_ns)
        if ledger.full:
            ledger.charge(charge_ns)
            largest = max(largest, charge_ns)
        values = (ledger.credit_ns / 1e6, ledger.spent_ns / 1e6, ledger.ordinary_ns / 1e6, largest / 1e6)
        assert Bound(name, *values).used <= 1 + 1e-9


def speculating(case: Case) -> list[tuple[str, int, int, float]]:
    """Twelve rounds with drafts of two sources; their lanes as (source, offered, accepted, forecast share)."""
    lanes = []
    for number in range(12):
        served: dict[str, dict[str, Any]] = {}
        for name, source in (("a", "learned"), ("b", "copy")):
            offered = 1 + (number + (source == "copy")) % 3
            accepted, share = number % (offered + 1), (number % 10) / 10 + 0.05
            drafts = {"offered_tokens": offered, "accepted_tokens": accepted, "proposal_source": source}
            served[name] = drafts | {"expected_tokens": 1 + share * offered, "committed_tokens": accepted + 1}
            lanes.append((source, offered, accepted, share))
        total = sum(own["offered_tokens"] for own in served.values())
        case.plan(
            20 * number, 20 * number + 9, served, "speculative", offered_tokens=total, draft_depth=3, target_width=4
        )
        case.plan(20 * number + 10, 20 * number + 19, {"a": {}})
    return lanes


def test_drafts_are_read_lane_by_lane(any_store: sa.Engine) -> None:
    case = Case()
    lanes = speculating(case)
    case.write(any_store)
    write_minutes(any_store)
    found = read_learning(any_store, SPAN, None)
    assert found.plans == 12
    wanted = grouped(lanes)
    key = ("source", "offered", "accepted", "bin", "lanes")
    assert sorted(tuple(row[name] for name in key) for row in found.rounds) == sorted(
        tuple(row[name] for name in key) for row in wanted
    )
    assert sum(row["forecast"] for row in found.rounds) == pytest.approx(sum(row["forecast"] for row in wanted))
    assert depth_figure(by_depth(found.rounds))["data"][0]["x"] == [1, 2, 3]


def test_only_the_newest_rounds_are_looked_at_where_there_are_many(
    any_store: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case()
    lanes = speculating(case)
    case.write(any_store)
    write_minutes(any_store)
    monkeypatch.setattr(reads, "MAX_ROUNDS", 5)
    found = read_learning(any_store, SPAN, RUN)
    assert found.plans == 5
    assert sum(row["lanes"] for row in found.rounds) == 10
    assert sum(row["accepted"] * row["lanes"] for row in found.rounds) == sum(lane[2] for lane in lanes[-10:])


def test_discovered_graphs_and_their_ordinary_time(any_store: sa.Engine) -> None:
    made = fill_store(any_store, plans=120, requests=14)
    write_minutes(any_store)
    found = read_learning(any_store, SPAN, None)
    assert found.run is not None
    assert found.run["run_id"] == made.run_ids[1]
    done = [row for row in completed_plans(any_store) if row["run_id"] == made.run_ids[1]]
    ordinary = [row for row in done if row["reason"] == "ordinary"]
    assert found.ordinary_ms == pytest.approx(sum(row["device_ms"] for row in ordinary))
    assert {row["shape"] for row in found.graphs} == {graph_label(row) for row in done if row["reason"] == "discovery"}
    for row in found.graphs:
        own = [plan for plan in ordinary if graph_label(plan) == row["shape"]]
        assert (row["plans"], row["ordinary_ms"]) == (len(own), pytest.approx(sum(plan["device_ms"] for plan in own)))
    assert sum(row["ms"] for row in found.minutes) == pytest.approx(sum(row["device_ms"] for row in done))
    assert "100 % of its time in this span" in discovery_words(found)
    assert found.newest is not None
    assert [bound.ledger for bound in bounds(found.newest, found.episodes)] == ["timing", "acceptance"]


@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(["ordinary", "discovery"]), st.floats(0, 1e3))))
def test_bins_keep_the_sums(entries: list[tuple[int, str, float]]) -> None:
    minutes = [{"minute": AT + dt.timedelta(minutes=m), "reason": r, "ms": ms} for m, r, ms in entries]
    rows = binned(minutes, AT, dt.timedelta(minutes=7))
    for reason in ("ordinary", "discovery"):
        assert sum(row["ms"] for row in rows if row["reason"] == reason) == pytest.approx(
            sum(ms for _, r, ms in entries if r == reason)
        )
    assert len({(row["at"], row["reason"]) for row in rows}) == len(rows)
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)


def probe(ledger: str, **values: Any) -> dict[str, Any]:
    base = {"ledger": ledger, "outcome": "completed", "selected_cost_ms": 10.0, "device_ms": 10.0, "charged_ms": 10.0}
    base |= {"exposed_delivery_ms": 0.0, "offered_tokens": 0, "accepted_tokens": 0, "output_tokens": 0}
    return base | values


def test_sentences_say_what_the_rows_show() -> None:
    episodes = [probe("timing", device_ms=12.0), probe("timing", device_ms=9.0), probe("timing", outcome="failed")]
    assert corrections(episodes) == pytest.approx([0.2, 0.1])
    assert timing_words(episodes).startswith("2 stale estimates were measured again: off by 15 % in the middle, 20 %")
    assert timing_words([probe("timing")]) == "1 stale estimate was measured again, and each still held."
    assert timing_words([]) == "No stale estimate was measured again in this span."
    drafts = [probe("acceptance", offered_tokens=6, accepted_tokens=3, output_tokens=4)]
    assert "1 probe verified 6 drafts, of which 3 (50 %) were right" in acceptance_words(drafts)
    assert acceptance_words(episodes) == "No drafts were verified to learn from in this span."
    assert "0.2 % of 499 ms of ordinary time" in bound_words(Bound("timing", 2.0, 0.5, 499.0, 0.0))
    assert "its credit is full" in bound_words(Bound("timing", FULL_MS, 0.5, 499.0, 3.0))
    assert "2.00 ms in debt" in bound_words(Bound("timing", -2.0, 0.5, 499.0, 3.0))


class Room:
    """A ControlRoom's reads, made at once."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    async def read(self, query: Any) -> Any:
        return query(self.engine)


def shown(store: sa.Engine, search: str) -> str:
    return str(asyncio.run(page_module.page(Room(store), search)))  # type: ignore[arg-type]


def test_the_page_says_what_is_missing_and_why(any_store: sa.Engine) -> None:
    assert "No engine had run" in shown(any_store, "")
    made = fill_store(any_store, plans=60, requests=8)
    write_minutes(any_store)
    search = f"?since={SPAN.since:%Y-%m-%dT%H:%M:%SZ}&until={SPAN.until:%Y-%m-%dT%H:%M:%SZ}"
    text = shown(any_store, search)
    assert "Speculation is off unless the server is started with --draft-tokens" in text
    assert "No probe was paid for in this span" in text
    assert f"run={made.run_ids[0]}" in shown(any_store, f"{search}&run={made.run_ids[0]}")
    assert "No engine had run" in shown(any_store, "?run=nobody")


def test_a_run_with_many_runs_since_is_still_shown(any_store: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = fill_store(any_store)
    monkeypatch.setattr(run_reads, "MOST_RUNS", 1)
    span = Span(filled.first_at - dt.timedelta(hours=1), filled.last_at + dt.timedelta(hours=1))
    oldest, newest = filled.run_ids[0], filled.run_ids[-1]
    for wanted, shown in ((oldest, oldest), (None, newest)):
        for found in (read_learning(any_store, span, wanted), read_costs(any_store, span, wanted)):
            assert found.run is not None
            assert found.run["run_id"] == shown
            assert [row["run_id"] for row in found.runs] == list(dict.fromkeys([newest, shown]))
