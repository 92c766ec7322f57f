"""Decisions in plain words, and the arithmetic behind them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures.parts import parts_figure
from dashboard.formatting import quantity
from dashboard.pages.plan.tables import ALTERNATIVE_COLUMNS, alternative_rows, shown_columns
from dashboard.score import PARTS, decisive_part, signed_parts
from dashboard.sentences import headline, how_it_lost, margin_words, recorded_words
from scheduler.plans import BarredBy, Reason

Rows = Callable[..., dict[str, Any]]


def test_an_ordinary_plan_names_its_rival_both_scores_and_the_decisive_part(
    plan_row: Rows, alternative_row: Rows
) -> None:
    assert headline(plan_row(), [alternative_row()]) == (
        "Decode ×4 was chosen over prefill 256: it was worth 3.10 per ms against 1.20, mostly because its tokens "
        "were worth more (3.00 against 1.25 per ms)."
    )


def test_a_lower_wait_cost_is_told_as_a_cost(plan_row: Rows, alternative_row: Rows) -> None:
    rival = alternative_row(token_value=60.0, wait_cost=2.9, value_rate=0.1)
    assert "the waiting it causes costs less (0.500 against 2.90 per ms)" in headline(plan_row(), [rival])


def test_the_rival_is_the_best_that_was_free_to_run(plan_row: Rows, alternative_row: Rows) -> None:
    barred = alternative_row(1, barred_by="pruned", value_rate=9.0, prefill_capacity=512)
    weaker = alternative_row(2, value_rate=0.4, prefill_capacity=64)
    text = headline(plan_row(), [barred, weaker, alternative_row(3)])
    assert "over prefill 256" in text
    assert "512" not in text


def test_an_unmeasured_graph_says_so_and_compares_only_work_with_work(plan_row: Rows, alternative_row: Rows) -> None:
    plan = plan_row(
        reason="discovery", score_kind="work", value_rate=312.0, score_horizon_ms=None, cost_state="unknown"
    )
    other = alternative_row(1, score_kind="work", value_rate=256.0, score_horizon_ms=None, cost_state="unknown")
    measured = alternative_row(2, kind="decode", batch_capacity=2, prefill_capacity=0, value_rate=900.0)
    assert headline(plan, [other, measured]) == (
        "Decode ×4 was run because its duration had never been measured. Of the unmeasured graphs it promised the "
        "most work: 312 against 256 for prefill 256. An unmeasured graph goes before every measured one, so "
        "decode ×2, worth 900 per ms, had to wait."
    )
    assert headline(plan, []).endswith("Nothing else could run.")


def test_a_rival_of_the_same_shape_is_told_apart_by_whom_it_serves(plan_row: Rows, alternative_row: Rows) -> None:
    plan = plan_row(kind="prefill", prefill_capacity=256, batch_capacity=1)
    assert "over prefill 256 for another request: it was" in headline(plan, [alternative_row()])
    assert "over prefill 256 for other requests: it was" in headline(plan, [alternative_row(active_rows=2)])


def test_a_tie_names_the_rules(plan_row: Rows, alternative_row: Rows) -> None:
    text = headline(plan_row(), [alternative_row(value_rate=3.1)])
    assert text.startswith("Decode ×4 tied with prefill 256 at 3.10 per ms; exact ties go to the shorter duration")


def test_a_winner_with_the_lower_score_is_not_explained_away(plan_row: Rows, alternative_row: Rows) -> None:
    text = headline(plan_row(), [alternative_row(value_rate=5.0)])
    assert "although prefill 256 scored higher (5.00 against 3.10 per ms)" in text
    assert "do not explain" in text


def test_a_lone_plan_says_that_nothing_else_could_run(plan_row: Rows, alternative_row: Rows) -> None:
    assert headline(plan_row(), []) == "Decode ×4 was the only graph that could run, worth 3.10 per ms."
    assert "the only graph" in headline(plan_row(), [alternative_row(barred_by="pruned")])


@pytest.mark.parametrize("reason", [reason.value for reason in Reason])
@pytest.mark.parametrize("score_kind", ["rate", "work"])
def test_every_reason_has_a_sentence(plan_row: Rows, alternative_row: Rows, reason: str, score_kind: str) -> None:
    plan = plan_row(reason=reason, score_kind=score_kind)
    text = headline(plan, [alternative_row()])
    assert text.startswith("Decode ×4 ")
    assert text.endswith(".")


@pytest.mark.parametrize("barred", [reason.value for reason in BarredBy])
def test_every_bar_is_told_in_words(plan_row: Rows, alternative_row: Rows, barred: str) -> None:
    words = how_it_lost(plan_row(), alternative_row(barred_by=barred))
    assert "_" not in words
    assert words != barred


def test_how_it_lost_names_the_part_with_the_largest_gap(plan_row: Rows, alternative_row: Rows) -> None:
    assert how_it_lost(plan_row(), alternative_row()) == "tokens: 1.75 behind; wait cost: 0.450 ahead"
    assert how_it_lost(plan_row(), alternative_row(value_rate=3.1)) == "tied; the tie rules decided"
    assert "scored higher" in how_it_lost(plan_row(), alternative_row(value_rate=4.0))
    work = plan_row(score_kind="work", score_horizon_ms=None)
    assert how_it_lost(work, alternative_row()) == "measured graphs wait for unmeasured ones"


def test_a_barred_candidate_that_scored_higher_is_told_as_such(plan_row: Rows, alternative_row: Rows) -> None:
    assert how_it_lost(plan_row(), alternative_row(barred_by="pruned", value_rate=9.0)) == (
        "scored higher than the winner, but was barred: a smaller graph holds the same requests"
    )
    assert how_it_lost(plan_row(), alternative_row(barred_by="pruned")).startswith("barred: ")


@pytest.mark.parametrize(
    ("score", "margin", "words"),
    [
        (3.1, None, "no rival in the same unit"),
        (3.1, 0.0, "a tie"),
        (3.1, 0.61, "61 %"),
        (3.1, 0.004, "0.4 % (close)"),
        (0.001, 3000.0, "3.00 per ms"),
        (-2.0, 0.5, "1.00 per ms"),
    ],
)
def test_margins_are_told_in_words(plan_row: Rows, score: float, margin: float | None, words: str) -> None:
    assert margin_words(plan_row(value_rate=score, margin=margin)) == words


def test_it_says_how_many_of_the_others_are_recorded(plan_row: Rows, alternative_row: Rows) -> None:
    four = [alternative_row(rank) for rank in range(1, 5)]
    assert recorded_words(plan_row(candidates=9), four) == "4 of 8 others are recorded"
    assert recorded_words(plan_row(candidates=5), four) == "all others are recorded"
    assert recorded_words(plan_row(candidates=1), []) == "there was no other"


def test_runner_ups_come_by_score_with_their_rank_as_a_column(plan_row: Rows, alternative_row: Rows) -> None:
    others = [alternative_row(1, value_rate=0.2), alternative_row(2, value_rate=9.0, barred_by="pruned")]
    work = alternative_row(3, value_rate=99.0, score_kind="work", score_horizon_ms=None)
    assert [row["rank"] for row in alternative_rows(plan_row(), [*others, work])] == [2, 1, 3]


values = st.floats(min_value=0, max_value=1e12)


@given(parts=st.lists(values, min_size=7, max_size=7), horizon_ms=st.floats(min_value=1e-3, max_value=1e6))
def test_signed_parts_add_up_to_the_score(parts: list[float], horizon_ms: float) -> None:
    row = dict(zip([part.column for part in PARTS], parts, strict=True))
    row |= {"score_kind": "rate", "score_horizon_ms": horizon_ms}
    score = sum(parts[:-1]) / horizon_ms - parts[-1]
    assert sum(signed_parts(row).values()) == pytest.approx(score, rel=1e-9, abs=1e-3)


def test_no_part_is_decisive_for_the_one_that_is_behind_in_all(plan_row: Rows, alternative_row: Rows) -> None:
    same = alternative_row(**{part.column: plan_row()[part.column] for part in PARTS}, score_horizon_ms=10.0)
    assert decisive_part(plan_row(), same) is None


def test_parts_below_zero_are_drawn_to_the_left_and_compared_with_their_signs(
    plan_row: Rows, alternative_row: Rows
) -> None:
    plan = plan_row(prompt_wait_relief=12.0, decode_late_relief=-3.0)
    rival = alternative_row(1, decode_late_relief=-400.0)
    figure = parts_figure(plan, [rival])
    late = next(trace for trace in figure["data"] if trace["name"] == "Late gaps")
    assert late["x"] == [-0.3, -400.0 / rival["score_horizon_ms"]]
    assert next(trace for trace in figure["data"] if trace["name"] == "Prompt waits")["x"] == [1.2, 0.0]
    theirs = quantity(-400.0 / rival["score_horizon_ms"])
    assert f"that are late (-0.300 against {theirs} per ms)" in headline(plan, [rival])


def test_a_plan_of_a_token_budget_is_not_said_to_be_chosen_by_value(plan_row: Rows, alternative_row: Rows) -> None:
    plan = plan_row(reason="token_budget")
    barred = alternative_row(1, barred_by="token_budget", value_rate=9.0)
    assert headline(plan, [barred]).startswith(
        "Decode ×4 was run by the fixed token budget: every running answer first"
    )
    assert how_it_lost(plan, barred) == "scored higher than the winner, but was barred: not what the token budget gives"
    assert how_it_lost(plan_row(), alternative_row(1, barred_by="cadence")) == (
        "barred: leaves running answers out (cadence)"
    )
    same = alternative_row(1, value_rate=1.5)
    assert headline(plan, [same]).endswith("does as much and was worth 1.50 per ms against 3.10.")


def test_columns_of_parts_that_no_preference_asks_for_are_left_out(plan_row: Rows, alternative_row: Rows) -> None:
    def fields(**values: float) -> set[str]:
        return {
            column["field"] for column in shown_columns(alternative_rows(plan_row(), [alternative_row(1, **values)]))
        }

    reliefs = {"prompt_wait_relief", "decode_late_relief"}
    assert not fields() & reliefs
    assert fields(decode_late_relief=-1.0) & reliefs == {"decode_late_relief"}
    assert reliefs < {column["field"] for column in ALTERNATIVE_COLUMNS}


def test_the_parts_figure_stacks_each_part_and_marks_the_score(plan_row: Rows, alternative_row: Rows) -> None:
    figure = parts_figure(plan_row(), [alternative_row(1), alternative_row(2, barred_by="pruned")])
    names = [trace["name"] for trace in figure["data"]]
    assert names == ["Tokens", "Deliveries", "Age relief", "Wait cost", "Score"]
    assert figure["data"][0]["x"] == [3.0, 1.25, 1.25]
    assert figure["data"][3]["x"] == [-0.5, -0.05, -0.05]
    assert figure["data"][0]["marker"]["opacity"] == [1.0, 1.0, 0.45]
    assert figure["data"][-1]["x"] == [3.1, 1.2, 1.2]
    assert json.loads(json.dumps(figure, allow_nan=False)) == figure


def test_the_parts_figure_leaves_out_scores_in_another_unit(plan_row: Rows, alternative_row: Rows) -> None:
    figure = parts_figure(plan_row(), [alternative_row(score_kind="work", score_horizon_ms=None)])
    assert len(figure["data"][0]["y"]) == 1
