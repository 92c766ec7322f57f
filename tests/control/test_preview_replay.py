"""Previews of a recording whose truth is known: what the simulator makes of it, and what it says about itself."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from recorded_traffic import RUN, STARTED_AT, Recorded, record

from scheduler.policy import PolicyConfig
from service.control.preview import window
from service.control.preview.asking import preview_request
from service.control.preview.errors import NothingRecorded
from service.control.preview.messages import PreviewResult
from service.control.preview.observed import quantile
from service.control.preview.replay import preview
from service.store.engines import write_transaction
from service.store.partitions import UNNAMED_DAY, has_days, utc_day
from service.store.tables import decision_log, plan_lanes, requests
from service.store.traffic import Extent, find_run, read_lanes

BALANCED = PolicyConfig.balanced()
CLOSE = 0.1


def previewed(engine: sa.Engine, **asked: Any) -> PreviewResult:
    return preview(engine, preview_request(BALANCED, 1, **asked), lambda _share, _words: None)


def ratios(result: PreviewResult) -> dict[str, float | None]:
    return {error.name: error.ratio for error in result.simulator_error}


@pytest.fixture
def recorded(store: sa.Engine) -> Recorded:
    return record(store)


def test_the_replay_of_a_simulated_run_is_within_ten_percent_of_what_happened(any_store: sa.Engine) -> None:
    truth = record(any_store, seconds=15, rate=5)
    result = previewed(any_store, minutes=5)
    assert result.recorded.samples == len(truth.workload.arrivals) == result.requests
    assert result.recorded_under_running
    assert result.window.policy_versions == (1,)
    for name in ("ttft_p50_ms", "time_per_token_p50_ms", "tokens_per_s", "busy_share"):
        ratio = ratios(result)[name]
        assert ratio is not None
        assert abs(ratio - 1) < CLOSE, name


def test_lanes_whose_writer_named_no_day_are_read_too(any_store: sa.Engine) -> None:
    record(any_store, seconds=3, rate=5)
    with write_transaction(any_store) as connection:
        if has_days(connection):
            connection.exec_driver_sql(f"UPDATE plan_lanes SET recorded_on = '{UNNAMED_DAY}'")
        count = connection.execute(sa.select(sa.func.count()).select_from(plan_lanes)).scalar_one()
    run = find_run(any_store, RUN, None)
    assert run is not None
    day = utc_day(STARTED_AT)
    assert len(list(read_lanes(any_store, run, (0, 1 << 40), (day, day)))) == count > 0


def test_recorded_figures_are_those_of_the_run(store: sa.Engine, recorded: Recorded) -> None:
    result = previewed(store, minutes=5)
    firsts = sorted((o.first_ns - o.arrived_ns) / 1e6 for o in recorded.result.outcomes)
    assert quantile(result.recorded.ttft_ms, 0.5) == pytest.approx(_middle(firsts), abs=0.01)
    longer = [outcome for outcome in recorded.result.outcomes if outcome.output_tokens > 1]
    per_token = sorted((o.finished_ns - o.first_ns) / 1e6 / (o.output_tokens - 1) for o in longer)
    assert quantile(result.recorded.time_per_token_ms, 0.5) == pytest.approx(_middle(per_token), abs=0.01)
    assert result.recorded.plans == recorded.result.plans
    assert result.recorded.completed == len(recorded.result.outcomes)


def _middle(values: list[float]) -> float:
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def test_the_same_draft_gives_the_same_figures_and_a_seed_the_same_result(store: sa.Engine, recorded: Recorded) -> None:
    first, again = previewed(store), previewed(store)
    assert first.draft == first.running == again.running
    assert previewed(store, seed=3).running != first.running


def test_a_draft_moves_what_it_is_about(store: sa.Engine, recorded: Recorded) -> None:
    result = previewed(store, coefficients={"decode_age_price": 50.0})
    before, after = result.running, result.draft
    assert (quantile(after.ttft_ms, 0.95) or 0) > (quantile(before.ttft_ms, 0.95) or 0)
    assert (quantile(after.inter_token_ms, 0.99) or 0) < (quantile(before.inter_token_ms, 0.99) or 0)


def test_a_sweep_has_every_point_and_marks_the_draft(store: sa.Engine, recorded: Recorded) -> None:
    sweep = {"decode_age_price": [1, 0.1], "terminal_value": [256.0, 0.0]}
    shares: list[float] = []
    request = preview_request(BALANCED, 1, sweep=sweep, minutes=1)
    result = preview(store, request, lambda share, _words: shares.append(share))
    assert [point.values for point in result.sweep] == [(0.1, 0.0), (0.1, 256.0), (1.0, 0.0), (1.0, 256.0)]
    assert [point.is_draft for point in result.sweep] == [False, True, False, False]
    assert result.sweep[1].figures == result.draft
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1


def test_requests_under_way_at_the_start_go_on_and_count_for_the_load_alone(store: sa.Engine) -> None:
    truth = record(store, seconds=20, rate=8)
    middle = STARTED_AT + dt.timedelta(seconds=12)
    minutes = (truth.until - middle).total_seconds() / 60
    result = previewed(store, minutes=minutes, until=truth.until)
    came_later = [a for a in truth.workload.arrivals if (a.time_ns or 0) >= 12_000_000_000]
    assert result.open_at_start > 0
    assert result.requests == result.open_at_start + len(came_later)
    assert result.recorded.samples == len(came_later)
    assert any("under way" in note for note in result.notes)
    ratio = ratios(result)["tokens_per_s"]
    assert ratio is not None
    assert abs(ratio - 1) < CLOSE


def test_without_the_scheduler_s_state_it_starts_unlearned_and_says_so(store: sa.Engine) -> None:
    record(store, seconds=10, log=False)
    result = previewed(store)
    assert any("starts unlearned" in note for note in result.notes)
    assert result.running.completed == result.recorded.completed


def test_damaged_logs_and_other_coefficients_are_told(store: sa.Engine, recorded: Recorded) -> None:
    with write_transaction(store) as connection:
        connection.execute(sa.update(decision_log).values(blob=b"no zlib"))
        connection.execute(sa.text("UPDATE policy_versions SET terminal_value = 1.0"))
    result = previewed(store)
    assert not result.recorded_under_running
    assert "other coefficients" in result.notes[0]
    assert any("starts unlearned" in note for note in result.notes)


def test_requests_that_ended_without_output_are_left_out(store: sa.Engine, recorded: Recorded) -> None:
    with write_transaction(store) as connection:
        connection.execute(
            sa.update(requests).where(requests.c.request_id == "0").values(output_tokens=0, finish_reason="abort")
        )
    result = previewed(store)
    assert result.requests == len(recorded.workload.arrivals) - 1
    assert any("without any output" in note for note in result.notes)


def test_a_long_window_is_sampled_by_whole_stretches_and_says_so(
    store: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "MOST_PLANS", 800)
    monkeypatch.setattr(window, "SHORTEST_PIECE", dt.timedelta(seconds=2))
    record(store, seconds=24, rate=4)
    result = previewed(store)
    assert result.sampled is not None
    assert result.sampled.pieces > 1
    assert 0 < result.sampled.share < 1
    assert result.sampled.words in result.notes
    assert result.recorded.plans < 1000
    ratio = ratios(result)["tokens_per_s"]
    assert ratio is not None
    assert abs(ratio - 1) < 2 * CLOSE


@given(st.integers(1, 5_000_000), st.integers(1, 64), st.integers(1, 27), st.floats(1, 86_400, allow_nan=False))
def test_pieces_lie_apart_within_the_window_and_hold_no_more_than_may_be_replayed(
    plans: int, lanes: int, policies: int, seconds: float
) -> None:
    since, until = STARTED_AT, STARTED_AT + dt.timedelta(seconds=seconds)
    pieces, sampled = window.pieces_of(since, until, Extent(plans, plans * lanes, 1, plans, since, until), policies)
    assert 1 <= len(pieces) <= window.MOST_PIECES
    assert since <= pieces[0].since
    assert pieces[-1].until <= until + dt.timedelta(microseconds=10)
    assert all(one.until <= other.since for one, other in itertools.pairwise(pieces))
    share = sum((piece.until - piece.since for piece in pieces), dt.timedelta()) / (until - since)
    assert share == pytest.approx(1.0 if sampled is None else sampled.share, abs=1e-3)
    assert share * plans <= window.MOST_PLANS * 1.01
    assert share * plans * lanes <= window.MOST_LANES * 1.01
    assert share * plans * policies <= max(window.MOST_PLANS_IN_ALL, policies) * 1.01


def test_a_window_without_traffic_is_refused_in_words(store: sa.Engine) -> None:
    with pytest.raises(NothingRecorded, match="no plan was recorded yet"):
        previewed(store)
    record(store, seconds=5)
    with pytest.raises(NothingRecorded, match="no plan was recorded of this run"):
        previewed(store, run_id="another")
    with pytest.raises(NothingRecorded, match="before this time"):
        previewed(store, until=STARTED_AT - dt.timedelta(days=1))
    with write_transaction(store) as connection:
        connection.execute(sa.delete(plan_lanes))
        connection.execute(sa.delete(requests))
    with pytest.raises(NothingRecorded, match="no request of this window"):
        previewed(store, run_id=RUN)
