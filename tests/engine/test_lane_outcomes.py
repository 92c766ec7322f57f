"""What the journal keeps of a frame that was as most frames are is what looking at each lane gives."""

from __future__ import annotations

import random

import pytest

from service.engine import completion
from tests.engine.fake_device import STOP


@pytest.mark.parametrize("seed", range(6))
def test_a_usual_frame_is_the_frame_that_its_lanes_make(make_rig, monkeypatch, seed):
    luck, quick, rig = random.Random(seed), [], make_rig()
    usual = completion._outcomes

    def compared(lanes, frame, committed):
        outcomes = usual(lanes, frame, committed)
        assert outcomes == completion._outcome_of_each(lanes, frame.plan.shape.draft_depth, committed)
        quick.append(outcomes is completion._one_token_each(len(lanes)))
        return outcomes

    monkeypatch.setattr(completion, "_outcomes", compared)
    for number in range(5):
        rig.device.scripts[20 + number] = [luck.choice((60, 61, STOP)) for _ in range(12)]
        rig.submit(f"r{number}", output=luck.randint(3, 12), first=20 + number)
    rig.step(2)
    for _ in range(40):
        if luck.random() < 0.1:
            rig.cancel(f"r{luck.randrange(5)}")
        if luck.random() < 0.2:
            rig.device.lane_errors[luck.randrange(4)] = "broken"
        rig.step()
    rig.device.lane_errors.clear()
    rig.settle()
    assert True in quick
    assert False in quick
