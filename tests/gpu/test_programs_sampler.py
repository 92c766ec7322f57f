"""Drafts are drawn by each request's own seed and token number, and verified by what they were drawn from."""

import numpy as np
import pytest
import torch

from gpu.device import SamplingParameters
from gpu.programs.device_sampler import DeviceSampler
from gpu.programs.host_sampler import HostSampler
from gpu.programs.interface import LaneInput
from gpu.programs.lanes import LaneBuffers
from gpu.programs.sampler import RoundRows, Verdict
from gpu.sampling import SamplingTable, draft_sample
from gpu.sampling.device_table import DeviceSamplingTable
from gpu.state import SlotState

SLOTS, VOCABULARY, DEPTH = 6, 9, 3
IDS = torch.tensor([0, 2, 3, 7, 8])
EMITTED = {2: 4, 5: 11, 0: 0}
PARAMETERS = {
    2: SamplingParameters(temperature=1.0, seed=8),
    5: SamplingParameters(temperature=1.0, seed=8),
    0: SamplingParameters(temperature=0.0),
}


@pytest.fixture(params=["host", "device"])
def round_of(request):
    """A sampler that has begun a round of a copying lane, two sampled lanes and a greedy one, and its table."""
    table, device_table = SamplingTable(SLOTS, VOCABULARY), DeviceSamplingTable(SLOTS, VOCABULARY)
    state = SlotState(SLOTS, 2, 4, torch.float32)
    for slot, parameters in (PARAMETERS | {1: SamplingParameters(temperature=0.0)}).items():
        table.open(slot, parameters, [1])
        device_table.open(slot, parameters, [1])
        state.open(slot, EMITTED.get(slot, 0))
    lanes = LaneBuffers(5, DEPTH, 0, SLOTS, torch.device("cpu"))
    copying = LaneInput(1, rows=4, copies=np.array([1, 1, 1]))
    lanes.upload([copying, *(LaneInput(slot, rows=4) for slot in (2, 5, 0))])
    verdict = Verdict.empty(5, DEPTH + 1, DEPTH, torch.device("cpu"))
    if request.param == "host":
        sampler = HostSampler(table, verdict, IDS)
    else:
        sampler = DeviceSampler(device_table, table, verdict, torch.zeros(5, DEPTH, len(IDS)), IDS)
    sampler.begin(lanes, state)
    return sampler, table, lanes


def test_drafts_follow_seed_and_token_number(round_of):
    sampler, table, _ = round_of
    logits = torch.randn((DEPTH, 5, len(IDS)), generator=torch.Generator().manual_seed(1))
    for step in range(DEPTH):
        columns = sampler.draft(step, logits[step])
        for lane, slot in ((1, 2), (2, 5), (3, 0)):
            alone, _ = draft_sample(logits[step, lane : lane + 1].numpy(), [slot], [EMITTED[slot] + step], table)
            assert int(columns[lane]) == int(alone[0])


def test_a_target_that_agrees_with_the_drafts_accepts_them_all(round_of):
    sampler, _, lanes = round_of
    generator = torch.Generator().manual_seed(2)
    drafts = torch.ones((5, DEPTH), dtype=torch.int64)
    target = torch.full((5, DEPTH + 1, VOCABULARY), -torch.inf)
    target[:, DEPTH, 4] = 0.0
    target[0, :, 1] = 5.0
    target[4, :, 0] = 0.0
    for step in range(DEPTH):
        logits = torch.randn((5, len(IDS)), generator=generator)
        drafts[:, step] = IDS[sampler.draft(step, logits)]
        target[1:4, step, IDS] = logits[1:4]
    drafts[0] = 1
    rows = RoundRows(lanes.lengths, torch.arange(5) * (DEPTH + 1), drafts)
    sampler.verify(target.view(-1, VOCABULARY), rows)
    assert sampler.verdict.counts.tolist() == [4, 4, 4, 4, 0]
    assert sampler.verdict.emitted[1:4].tolist() == [[*row, 4] for row in drafts[1:4].tolist()]
    np.testing.assert_allclose(sampler.verdict.survival[1:4], np.ones((3, DEPTH)), rtol=1e-5)
