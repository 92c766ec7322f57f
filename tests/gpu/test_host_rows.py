"""What a program's lanes are computed to with numpy is what torch computes of them, and so is what moves the slots."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.device import SamplingParameters
from gpu.pages import PADDING_PAGE
from gpu.programs.host_rows import HostRowLayout, row_layout
from gpu.programs.host_sampler import HostSampler
from gpu.programs.interface import LaneInput
from gpu.programs.lanes import LaneBuffers
from gpu.programs.progress import HostProgress, TorchProgress, make_progress
from gpu.programs.rows import RowLayout
from gpu.programs.sampler import RoundRows, Verdict
from gpu.sampling import SamplingTable, verify_round
from gpu.sampling.verification import VerifyLane
from gpu.state import SlotState

BATCH, WIDTH, PROMPT, PROMPT_ROWS, SLOTS, VOCAB = 4, 3, 8, 3, 6, 11
CPU = torch.device("cpu")


@st.composite
def cases(draw, prompt=PROMPT):
    """Lanes of distinct slots, some of them prompts; and slots at any cursor, with pages missing or not.

    `prompt`: how many prompt tokens the program takes; 0 for one that only decodes.
    """
    slots = draw(st.permutations(range(SLOTS)))[: draw(st.integers(1, BATCH))]
    lanes = [LaneInput(slot, rows=draw(st.integers(1, WIDTH))) for slot in slots]
    prompt_rows = draw(st.integers(1, PROMPT_ROWS))
    for at in draw(st.lists(st.integers(0, len(lanes) - 1), max_size=prompt_rows if prompt else 0, unique=True)):
        first, count = 100 * at, draw(st.integers(1, prompt // prompt_rows))
        lanes[at] = LaneInput(slots[at], np.arange(first, first + count), finishes=draw(st.booleans()))
    state = SlotState(SLOTS, 4, 1, torch.float32)
    state.cursor[:SLOTS] = torch.tensor(draw(st.lists(st.integers(0, 40), min_size=SLOTS, max_size=SLOTS)))
    state.emitted[:SLOTS] = torch.tensor(draw(st.lists(st.integers(0, 9), min_size=SLOTS, max_size=SLOTS)))
    state.pending[:SLOTS] = torch.tensor(draw(st.lists(st.integers(-1, 9), min_size=SLOTS, max_size=SLOTS)))
    held = draw(st.integers(0, 4))
    state.page_table[:] = torch.arange(4 * (SLOTS + 1)).view(SLOTS + 1, 4) + 1
    state.page_table[:, held:] = PADDING_PAGE
    buffers = LaneBuffers(BATCH, WIDTH - 1, prompt, SLOTS, CPU, prompt_rows=prompt_rows)
    buffers.upload(lanes)
    return lanes, buffers, state


def cloned(state: SlotState) -> SlotState:
    copy = SlotState(SLOTS, 4, 1, torch.float32)
    for name in ("cursor", "emitted", "pending", "page_table"):
        getattr(copy, name).copy_(getattr(state, name))
    return copy


@settings(deadline=None)
@given(case=cases(), width=st.sampled_from([PROMPT, None]))
def test_rows_are_those_of_torch(case, width):
    compare_rows(case, BATCH * PROMPT if width else PROMPT + (BATCH - 1) * WIDTH, width)


@settings(deadline=None)
@given(case=cases(prompt=0), width=st.sampled_from([1, WIDTH]))
def test_rows_of_decode_steps_are_those_of_torch(case, width):
    compare_rows(case, BATCH * width, width)


def compare_rows(case, count, width):
    _, buffers, state = case
    tokens = torch.arange(BATCH * WIDTH).view(BATCH, WIDTH) + 1000
    given_ = buffers.lengths, tokens, buffers, state
    host = HostRowLayout(BATCH, count, width).lay(*given_)
    plain = RowLayout(BATCH, count, width, CPU).lay(*given_)
    for field in dataclasses.fields(plain):
        ours, theirs = getattr(host, field.name), getattr(plain, field.name)
        assert ours.dtype == theirs.dtype, field.name
        assert torch.equal(ours, theirs), field.name


@settings(deadline=None)
@given(case=st.one_of(cases(), cases(prompt=0)), data=st.data())
def test_slots_are_moved_as_torch_moves_them(case, data):
    lanes, buffers, state = case
    verdict = Verdict.empty(BATCH, WIDTH, WIDTH - 1, CPU)
    verdict.emitted[:] = torch.arange(BATCH * WIDTH).view(BATCH, WIDTH) + 50
    for row, lane in enumerate(lanes):
        drawn = lane.prompt is None or lane.finishes
        verdict.finite[row] = finite = data.draw(st.booleans())
        verdict.counts[row] = data.draw(st.integers(1, WIDTH)) if drawn and finite else 0
    twin = cloned(state)
    outcomes = []
    for progress, on in ((HostProgress(buffers, state), state), (TorchProgress(buffers, twin), twin)):
        tokens = torch.full((BATCH, WIDTH), 7)
        progress.take_pending(tokens)
        drawn_lengths = progress.drawn_lengths(buffers.lengths)
        consumed = progress.advance(buffers.lengths, verdict)
        outcomes.append((tokens, drawn_lengths, consumed, on.cursor, on.emitted, on.pending))
    for ours, theirs in zip(*outcomes, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    assert int(state.cursor[SLOTS]) == 0


def test_the_form_follows_where_the_inputs_are():
    eager, queued = (LaneBuffers(BATCH, 0, 0, SLOTS, CPU, queued=queued) for queued in (False, True))
    state = SlotState(SLOTS, 4, 1, torch.float32)
    assert type(row_layout(eager, BATCH, BATCH, 1)) is HostRowLayout
    assert type(row_layout(queued, BATCH, BATCH, 1)) is RowLayout
    assert type(make_progress(eager, state)) is HostProgress
    assert type(make_progress(queued, state)) is TorchProgress


@pytest.mark.parametrize("bad", [None, np.nan, np.inf])
@pytest.mark.parametrize("other", [SamplingParameters(0.0, logprobs=2), SamplingParameters(seed=3)])
def test_lanes_that_take_the_likeliest_token_get_what_verification_gives_them(bad, other):
    """Of two lanes of a round the second asks for more, so that it goes the general way."""
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(BATCH, VOCAB)).astype(np.float32))
    if bad is not None:
        logits[0, 4] = bad
    table = SamplingTable(SLOTS, VOCAB)
    for slot, parameters in ((5, SamplingParameters(0.0)), (2, other)):
        table.open(slot, parameters, [1, 2])
    state = SlotState(SLOTS, 4, 1, torch.float32)
    buffers = LaneBuffers(BATCH, 0, 0, SLOTS, CPU)
    buffers.upload([LaneInput(5), LaneInput(2)])
    sampler = HostSampler(table, Verdict.empty(BATCH, 1, 0, CPU), None)
    sampler.begin(buffers, state)
    first_rows = torch.arange(BATCH)
    sampler.verify(logits, RoundRows(buffers.lengths, first_rows, torch.zeros((BATCH, 0), dtype=torch.int64)))
    no_drafts = np.zeros(0, dtype=np.int64)
    lanes = [VerifyLane(slot, row, no_drafts, None, 0) for row, slot in enumerate((5, 2))]
    for row, outcome in enumerate(verify_round(logits.numpy(), lanes, table)):
        count = len(outcome.emitted)
        assert (int(sampler.verdict.counts[row]), bool(sampler.verdict.finite[row])) == (count, outcome.finite)
        assert tuple(sampler.verdict.emitted[row, :count].tolist()) == outcome.emitted
        assert sampler.logprobs[row] == outcome.logprobs
    assert (count, bool(sampler.verdict.finite[0])) == (1, bad is None)
