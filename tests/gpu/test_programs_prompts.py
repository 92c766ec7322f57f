"""Several prompts in one mixed pass: each computes what it computes alone, whoever rides beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from program_host import ProgramHost, decode_shape, mixed_shape, prefill_shape, prompt_of, round_shape
from tiny_draft_head import write_tiny_draft_head

from gpu.device import InvalidFrame, SamplingParameters
from gpu.model.draft_head import load_draft_head
from gpu.model.weights import load_model, open_source
from gpu.programs.interface import ExecutionStyle, LaneInput
from gpu.programs.prompt_rows import prompt_blocks

CAPACITY, ROWS, DEPTH, COLUMNS = 256, 4, 3, 16
PROMPTS = {0: 150, 1: 64, 2: 41, 3: 1, 4: 200}
READ_BEFORE = {1: 5, 4: 70}  # these go on where an earlier chunk ended
DECODERS = {5: 33, 6: 7}
DICE = SamplingParameters(temperature=1.0, seed=5, reproducible=True)
COHORTS = {
    "four fill the graph": [(0, 150), (1, 59), (2, 41), (3, 1)],
    "decoders between them": [(5, None), (2, 41), (6, None), (0, 149)],
    "last rows and one token": [(3, 1), (4, 130), (5, None)],
    "parts of prompts": [(2, 3), (5, None), (0, 64), (4, 65), (6, None), (1, 59)],
    "one": [(6, None), (4, 130), (5, None)],
    "none": [(6, None), (5, None)],
}


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return load_model(open_source(tiny_checkpoint), torch.float32, COLUMNS * 16)


@pytest.fixture(scope="module")
def head(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("head") / "head.safetensors"
    write_tiny_draft_head(path, model.config)
    return load_draft_head(path, model)


def host_of(model, head, style) -> ProgramHost:
    """Prompts of which some are partly read, and decoders, of which one draws."""
    host = ProgramHost(model, head, columns=COLUMNS, style=style)
    for slot, length in (PROMPTS | DECODERS).items():
        host.open(slot, prompt_of(length, seed=slot), *([DICE] if slot == 6 else []))
    for slot, count in READ_BEFORE.items():
        host.prefill(slot, CAPACITY, count)
    for slot in DECODERS:
        host.prefill(slot)
    return host


def chunk_or_rows(host, slot, count, rows) -> LaneInput:
    return LaneInput(slot, rows=rows) if count is None else host.chunk(slot, count)


@pytest.mark.parametrize("depth", [0, DEPTH])
@pytest.mark.parametrize("style", ExecutionStyle)
@pytest.mark.parametrize("cohort", COHORTS.values(), ids=COHORTS.keys())
def test_a_cohort_computes_what_its_members_compute_alone(cohort, style, depth, model, head):
    drafting = head if depth else None
    together, apart = (host_of(model, drafting, style) for _ in range(2))
    shape = mixed_shape(8, depth, CAPACITY, ROWS)
    together.run(shape, *(chunk_or_rows(together, slot, count, depth + 1) for slot, count in cohort))
    for slot, count in cohort:
        alone = prefill_shape(CAPACITY) if count is not None else round_shape(1, depth) if depth else decode_shape(1)
        apart.run(alone, chunk_or_rows(apart, slot, count, depth + 1))
    assert together.outputs == apart.outputs
    for name in ("cursor", "pending", "emitted"):
        assert getattr(together.state, name)[:-1].tolist() == getattr(apart.state, name)[:-1].tolist()
    torch.testing.assert_close(together.state.last_hidden[:-1], apart.state.last_hidden[:-1], rtol=1e-4, atol=1e-4)
    for slot, _ in cohort:
        rows = together.kv_rows(slot, int(together.state.cursor[slot]))[: -1 if drafting else None]
        for ours, theirs in zip(
            (*together.cache.keys, *together.cache.values), (*apart.cache.keys, *apart.cache.values), strict=True
        ):
            torch.testing.assert_close(ours[rows], theirs[rows], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("style", ExecutionStyle)
def test_a_prompt_without_finite_logits_fails_alone(style, model):
    host, sound = (host_of(model, None, style) for _ in range(2))
    host.cache.values[0][host.kv_rows(4, 3)] = torch.nan
    cohort = [(0, 150), (4, 60), (5, None), (2, 41)]
    outputs = [
        each.run(mixed_shape(8, 0, CAPACITY, ROWS), *(chunk_or_rows(each, slot, count, 1) for slot, count in cohort))[0]
        for each in (host, sound)
    ]
    assert [lane.finite for lane in outputs[0].lanes] == [True, False, True, True]
    for row in (0, 2, 3):
        assert outputs[0].lanes[row] == outputs[1].lanes[row]
    assert host.state.cursor[[0, 4, 2]].tolist() == [150, 70, 41]


@pytest.mark.parametrize("counts", [(1, 1, 1, 1, 1), (150, 64, 41, 2)])
def test_prompts_beyond_the_buffers_are_refused(counts, model):
    host = host_of(model, None, ExecutionStyle.EAGER)
    lanes = [LaneInput(slot, np.zeros(count, dtype=np.int64)) for slot, count in enumerate(counts)]
    with pytest.raises(InvalidFrame, match=f"{len(counts)} prompts of {sum(counts)} tokens; 4 of 256 fit"):
        host.run(mixed_shape(8, 0, CAPACITY, ROWS), *lanes)


@pytest.mark.parametrize("rows", range(1, 5))
@pytest.mark.parametrize("tokens", [64, 192, 512, 576, 4096])
def test_blocks_hold_every_division_of_the_prompt_tokens(tokens, rows):
    blocks, size = prompt_blocks(tokens, rows)
    worst = max(
        sum(-(-count // size) for count in counts)
        for first in range(1, min(tokens - rows + 2, 2 * size + 2))
        for counts in [[first] * (rows - 1) + [tokens - first * (rows - 1)]]
        if min(counts) > 0
    )
    assert worst <= blocks
    assert blocks * size < tokens + rows * size
