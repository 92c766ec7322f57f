"""A draft head's confidence, corrected by what verification finds."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.calibration import ConfidenceCalibration
from gpu.device import SamplingParameters

SEEDED = SamplingParameters(temperature=1.0, seed=3, reproducible=True)
GREEDY = SamplingParameters(temperature=0.0)
BELIEVED = np.array([0.8, 0.5, 0.5], np.float32)
FOUND = np.array([0.4, 0.1, np.nan])


def test_at_first_the_head_is_believed():
    alone, joint = ConfidenceCalibration(3).corrected(SEEDED, BELIEVED, FOUND)
    assert alone == pytest.approx(BELIEVED)
    assert joint == pytest.approx([0.8, 0.4, 0.2])


def test_what_verification_finds_replaces_what_the_head_believes():
    calibration = ConfidenceCalibration(3)
    for _ in range(2000):
        alone, joint = calibration.corrected(SEEDED, BELIEVED, FOUND)
    assert joint[:2] == pytest.approx([0.4, 0.1], rel=0.02)
    assert joint[2] <= joint[1]
    assert alone[:2] == pytest.approx([0.4, 0.25], rel=0.02)
    assert alone.dtype == joint.dtype == np.float32


def test_ways_of_sampling_are_corrected_apart():
    calibration = ConfidenceCalibration(3)
    for _ in range(500):
        calibration.corrected(SEEDED, BELIEVED, FOUND)
    assert calibration.corrected(GREEDY, BELIEVED, FOUND)[0] == pytest.approx(BELIEVED)


def test_a_round_without_learned_drafts_teaches_nothing_and_claims_nothing():
    calibration = ConfidenceCalibration(3)
    nothing, copied = np.zeros(3, np.float32), np.zeros(3)
    for _ in range(500):
        assert not calibration.corrected(SEEDED, nothing, copied).any()
    assert calibration.corrected(SEEDED, BELIEVED, FOUND)[0] == pytest.approx(BELIEVED)


def test_what_is_accepted_more_often_than_believed_stays_a_probability():
    calibration = ConfidenceCalibration(3)
    for _ in range(500):
        planes = calibration.corrected(GREEDY, BELIEVED, np.ones(3))
        assert planes.max() <= 1.0
    assert planes[1] == pytest.approx([1.0, 1.0, 1.0], abs=0.02)
