"""Acceptance curves and the luck drawn from them."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.simulation.acceptance import AcceptanceLuck, Survival, first_round, parse_acceptance
from scheduler.simulation.errors import InvalidTable, SimulationError

POSITIONS = """method,target,num_spec_tokens,pos1,pos2,pos3,source
eagle3,none stated,3,,,,x
eagle3,Llama-8B,3,0.8,0.5,0.4,x
mtp,DeepSeek,1,0.9,,,x
"""
FITTED = "target,dataset,fit_p1,fit_q\nKimi,math,0.9,0.5\nLlama,chat,0.8,0.25\n"
CURVE = Survival((0.8, 0.5, 0.4), "test", 3)


def test_the_first_row_that_states_a_curve_is_taken():
    survival = parse_acceptance(POSITIONS, "a.csv")
    assert (survival.probabilities, survival.source, survival.measured_depth) == (
        (0.8, 0.5, 0.4),
        "eagle3, Llama-8B",
        3,
    )


def test_words_choose_the_row_in_any_case_and_order():
    assert parse_acceptance(POSITIONS, "a.csv", "deepseek MTP").probabilities == (0.9,)
    assert parse_acceptance(FITTED, "f.csv", "chat").to_depth(3) == pytest.approx([0.8, 0.2, 0.05])


def test_depths_beyond_the_measured_ones_fall_on_by_the_last_ratio():
    assert CURVE.to_depth(5) == pytest.approx([0.8, 0.5, 0.4, 0.32, 0.256])
    assert Survival((0.9,), "x").to_depth(2) == pytest.approx([0.9, 0.81])
    assert Survival((0.5, 0.0), "x").to_depth(3) == [0.5, 0.0, 0.0]
    assert CURVE.to_depth(2) == [0.8, 0.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target,mean\nx,2", "has neither pos1, pos2, ... nor fit_p1 and fit_q"),
        ("target,pos1\nx,", "has no row that states an acceptance curve"),
        ("target,pos1,pos2\nx,0.5,0.6", "line 2: pos2 is '0.6'; it must be a probability that does not exceed"),
        ("target,pos1\nx,1.5", "pos1 is '1.5'"),
        ("fit_p1,fit_q\n0.5,1.5", "fit_q is '1.5'; it must be a probability, from 0 to 1"),
        ("fit_p1,fit_q\n-0.5,0.5", "fit_p1 is '-0.5'"),
        ("", "a.csv is empty"),
    ],
)
def test_a_malformed_file_is_refused_with_the_place(text, words):
    with pytest.raises(InvalidTable) as caught:
        parse_acceptance(text, "a.csv")
    assert words in str(caught.value)


def test_words_that_no_row_has_are_named():
    with pytest.raises(InvalidTable, match="no row with 'gemma' that"):
        parse_acceptance(POSITIONS, "a.csv", "gemma")


@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_drafts_survive_as_often_as_the_curve_says(spread):
    luck = AcceptanceLuck(CURVE, 3, seed=1, spread=spread)
    accepted = np.frombuffer(luck.accepted(0, 60_000), dtype=np.uint8)
    assert [(accepted >= depth).mean() for depth in (1, 2, 3)] == pytest.approx([0.8, 0.5, 0.4], abs=0.01)


def test_a_round_has_the_same_luck_however_the_answer_got_there():
    luck = AcceptanceLuck(CURVE, 3, seed=1)
    long, short = luck.accepted(4, 100), luck.accepted(4, 60)
    assert [long[100 - n] for n in range(60)] == [short[60 - n] for n in range(60)]


def test_luck_depends_on_the_seed_and_the_request():
    drawn = {AcceptanceLuck(CURVE, 3, seed).accepted(request, 200) for seed in (1, 2) for request in (0, 1)}
    assert len(drawn) == 4
    assert AcceptanceLuck(CURVE, 3, 1).accepted(0, 200) in drawn


def test_heterogeneous_requests_have_curves_of_their_own_around_the_given_one():
    luck = AcceptanceLuck(CURVE, 3, heterogeneity=0.3)
    first = np.array([luck.curve(request)[0] for request in range(2000)])
    assert np.median(first) == pytest.approx(0.8, abs=0.01)
    assert 0.03 < first.std() < 0.1
    assert np.array_equal(AcceptanceLuck(CURVE, 3).curve(7), [0.8, 0.5, 0.4])


def test_a_round_knows_its_own_chances_and_they_are_right():
    """Of the rounds whose joint probability is near p, a share near p survives: confidence is calibrated."""
    luck = AcceptanceLuck(CURVE, 3, seed=5, spread=0.9)
    length = 60_000
    accepted = np.frombuffer(luck.accepted(0, length), dtype=np.uint8)[::-1][:length]
    joint = luck.survival(luck.curve(0)[None, :], first_round(0) + np.arange(length))[:, 1]
    assert joint.max() - joint.min() > 0.4
    for low in (0.3, 0.4, 0.5, 0.6):
        near = (joint >= low) & (joint < low + 0.1)
        assert (accepted[near] >= 2).mean() == pytest.approx(joint[near].mean(), abs=0.02)


def test_a_rounds_survival_never_rises_with_depth_and_stays_a_probability():
    luck = AcceptanceLuck(Survival((0.99, 0.98, 0.1, 0.1), "x"), 4, spread=1.0)
    joint = luck.survival(luck.curve(0)[None, :], np.arange(5000))
    assert (np.diff(joint, axis=1) <= 0).all()
    assert joint.min() >= 0
    assert joint.max() <= 1


@pytest.mark.parametrize("options", [{"depth": 0}, {"depth": 64}, {"heterogeneity": -1}, {"spread": 1.5}])
def test_luck_that_cannot_be_is_refused(options):
    with pytest.raises(SimulationError):
        AcceptanceLuck(CURVE, **{"depth": 3, **options})
