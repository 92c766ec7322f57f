"""Programs read only what their lanes own and write only that and padding."""

import numpy as np
import pytest
import torch
from program_host import ProgramHost, decode_shape, mixed_shape, prefill_shape, prompt_of, round_shape, tensors_of
from tiny_draft_head import write_tiny_draft_head

from gpu.model.draft_head import load_draft_head
from gpu.model.weights import load_model, open_source
from gpu.pages import PADDING_WRITE_ROW, PAGE_TOKENS, ZERO_ROW
from gpu.programs.interface import LaneInput
from scheduler.shapes import Allocation

COPIES = np.array([5, 6, 7])
DECODERS = {1: 37, 3: 16, 4: 5}
PROMPT_SLOT, PROMPT_LENGTH, CONSUMED = 6, 50, 21
FRESH_SLOT = 2

CASES = {
    "prefill": (prefill_shape(64), lambda host: [host.chunk(PROMPT_SLOT)]),
    "prefill chunk": (prefill_shape(64), lambda host: [host.chunk(PROMPT_SLOT, 9)]),
    "scored": (prefill_shape(64, scored=True), lambda host: [host.chunk(PROMPT_SLOT)]),
    "decode": (decode_shape(4), lambda host: [LaneInput(3), LaneInput(1)]),
    "width one": (round_shape(4, 0), lambda host: [LaneInput(1), LaneInput(4)]),
    "rectangular": (round_shape(4, 3), lambda host: [LaneInput(1, rows=4), LaneInput(3, rows=2)]),
    "copies": (round_shape(4, 3), lambda host: [LaneInput(1, rows=3, copies=COPIES), LaneInput(4, rows=2)]),
    "ragged": (round_shape(4, 3, rows=9), lambda host: [LaneInput(4, rows=4), LaneInput(1, rows=3)]),
    "device": (
        round_shape(4, 3, rows=6, allocation=Allocation.DEVICE),
        lambda host: [LaneInput(1, rows=4), LaneInput(3, rows=4)],
    ),
    "mixed": (mixed_shape(4, 3, 64), lambda host: [LaneInput(1, rows=4), host.chunk(PROMPT_SLOT), LaneInput(3)]),
    "mixed prompt": (mixed_shape(4, 3, 64), lambda host: [host.chunk(PROMPT_SLOT, 13)]),
    "mixed prompts": (
        mixed_shape(4, 3, 64, 3),
        lambda host: [host.chunk(PROMPT_SLOT, 13), LaneInput(1, rows=4), host.chunk(FRESH_SLOT)],
    ),
    "mixed decode": (mixed_shape(4, 3, 64), lambda host: [LaneInput(3, rows=4), LaneInput(1, rows=2)]),
    "mixed, width one": (mixed_shape(2, 0, 64), lambda host: [host.chunk(PROMPT_SLOT), LaneInput(4)]),
}


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return load_model(open_source(tiny_checkpoint), torch.float32, 512)


@pytest.fixture(scope="module")
def head(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("head") / "head.safetensors"
    write_tiny_draft_head(path, model.config)
    return load_draft_head(path, model)


@pytest.fixture(params=["draft head", "no draft head"])
def host(request, model, head) -> ProgramHost:
    host = ProgramHost(model, head if request.param == "draft head" else None)
    for slot, length in DECODERS.items():
        host.open(slot, prompt_of(length, seed=slot))
        host.prefill(slot)
        host.run(decode_shape(1), LaneInput(slot))
    host.open(FRESH_SLOT, prompt_of(7, seed=8))
    host.open(PROMPT_SLOT, prompt_of(PROMPT_LENGTH, seed=9))
    host.run(prefill_shape(64, scored=True), host.chunk(PROMPT_SLOT, CONSUMED))
    return host


def lanes_of(case, host):
    """The case's lanes; without a draft head learned lanes have one row."""
    lanes = CASES[case][1](host)
    if host.context.draft_head is not None:
        return lanes
    return [lane if lane.prompt is not None or lane.copies is not None else LaneInput(lane.slot) for lane in lanes]


def mask_of(host, slots, written=0):
    """Bool [KV rows]: rows of these slots' tokens in KV, and of `written` positions after them."""
    rows = torch.zeros(len(host.cache.keys[0]), dtype=torch.bool)
    for slot in slots:
        rows[host.kv_rows(slot, int(host.state.cursor[slot]) + written)] = True
    return rows


def poison(host, slots) -> None:
    """NaN, or token ids out of range, wherever a run with these slots has no business."""
    own = mask_of(host, slots)
    own[ZERO_ROW:PAGE_TOKENS] = True
    for memory in (*host.cache.keys, *host.cache.values):
        memory[~own] = torch.nan
    others = torch.ones(host.state.slots, dtype=torch.bool)
    others[list(slots)] = False
    others = torch.nn.functional.pad(others, (0, 1))  # the padding slot is everybody's
    host.state.last_hidden[others] = torch.nan
    host.state.snapshot_hidden.fill_(torch.nan)
    host.state.page_table[others] = 10**6
    for numbers in (host.state.cursor, host.state.pending, host.state.emitted):
        numbers[others] = 10**6
    for slot in slots:
        columns = -(-(int(host.state.cursor[slot]) + 64) // PAGE_TOKENS)
        host.state.page_table[slot, columns:] = 10**6


@pytest.mark.parametrize("case", CASES)
def test_a_run_depends_on_nothing_that_its_lanes_do_not_own(case, host):
    shape, lanes = CASES[case][0], lanes_of(case, host)
    program = host.program(shape)
    before = tensors_of(host)
    expected = program.run(lanes)
    expected_logits = program.logits.clone()
    restore(host, before)
    poison(host, [lane.slot for lane in lanes])
    actual = program.run(lanes)
    assert actual.lanes == expected.lanes
    assert all(lane.finite for lane in actual.lanes)
    for name in ("confidence", "survival"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name))
    used = ~expected_logits.isnan().any(dim=1)
    assert torch.equal(program.logits[used], expected_logits[used])


@pytest.mark.parametrize("case", [*CASES, "warm-up"])
def test_a_run_writes_nothing_but_its_lanes_rows_and_padding(case, host):
    shapes = [shape for shape, _ in CASES.values()] if case == "warm-up" else [CASES[case][0]]
    lanes = () if case == "warm-up" else lanes_of(case, host)
    slots = [lane.slot for lane in lanes]
    before = tensors_of(host)
    allowed = torch.zeros(len(host.cache.keys[0]), dtype=torch.bool)
    allowed[PADDING_WRITE_ROW] = True
    for lane in lanes:
        start = int(host.state.cursor[lane.slot])
        rows = lane.rows if lane.prompt is None else len(lane.prompt)
        allowed[host.kv_rows(lane.slot, start + rows)[max(start - 1, 0) :]] = True
    for shape in shapes:
        host.run(shape, *lanes)
    kv_count = 2 * len(host.cache.keys)
    for number, (old, new) in enumerate(zip(before, tensors_of(host), strict=True)):
        kept = ~allowed if number < kv_count else torch.ones(len(old), dtype=torch.bool)
        if number >= kv_count:
            kept[slots if len(old) == host.state.slots + 1 else []] = False
            kept[-1] = False
        assert torch.equal(old[kept], new[kept])
    assert not any(bool(memory[ZERO_ROW:PAGE_TOKENS].any()) for memory in (*host.cache.keys, *host.cache.values))
    table = before[2 * len(host.cache.keys) + 3]
    assert torch.equal(table, host.state.page_table)


@pytest.mark.parametrize(
    "case", ["decode", "rectangular", "ragged", "device", "mixed", "mixed decode", "mixed prompts"]
)
def test_a_lane_without_finite_logits_fails_alone(case, host):
    shape, lanes = CASES[case][0], lanes_of(case, host)
    before = tensors_of(host)
    program = host.program(shape)
    expected = program.run(lanes)
    restore(host, before)
    bad = next(row for row, lane in enumerate(lanes) if lane.prompt is None)
    slot = lanes[bad].slot
    host.cache.values[0][host.kv_rows(slot, 3)] = torch.nan
    actual = program.run(lanes)
    assert not actual.lanes[bad].finite
    assert actual.lanes[bad].emitted == ()
    assert int(host.state.cursor[slot]) == int(before[2 * len(host.cache.keys)][slot])
    for row, lane in enumerate(lanes):
        if row != bad and shape.allocation is Allocation.NONE:
            assert actual.lanes[row] == expected.lanes[row]
            assert int(host.state.cursor[lane.slot]) > int(before[2 * len(host.cache.keys)][lane.slot])
    again = program.run([lane for row, lane in enumerate(lanes) if row != bad])
    assert all(lane.finite for lane in again.lanes)


def test_a_prompt_chunk_without_finite_logits_fails_and_consumes_nothing(host):
    host.cache.values[0][host.kv_rows(PROMPT_SLOT, 3)] = torch.nan
    for shape in (prefill_shape(64), prefill_shape(64, scored=True), mixed_shape(4, 3, 64)):
        for count in (5, None):
            output, _ = host.run(shape, host.chunk(PROMPT_SLOT, count))
            assert not output.lanes[0].finite
            assert output.lanes[0].emitted == ()
            assert output.lanes[0].prompt_logprobs == ()
            assert int(host.state.cursor[PROMPT_SLOT]) == CONSUMED


def restore(host, tensors) -> None:
    """Undo a run."""
    state = host.state
    rows = (state.cursor, state.pending, state.emitted, state.page_table, state.last_hidden, state.snapshot_hidden)
    for memory, saved in zip((*host.cache.keys, *host.cache.values, *rows), tensors, strict=True):
        memory.copy_(saved.view(memory.dtype))
