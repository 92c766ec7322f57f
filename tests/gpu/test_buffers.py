"""Static inputs hold the lanes and legal padding, whatever ran before; rows are laid as the obvious loop says."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu.pages import PADDING_PAGE, PADDING_WRITE_ROW, PAGE_TOKENS, ZERO_ROW
from gpu.programs.attention import read_rows
from gpu.programs.interface import LaneInput
from gpu.programs.lanes import LaneBuffers
from gpu.programs.rows import RowLayout, kv_rows
from gpu.state import SlotState

CPU = torch.device("cpu")
SLOTS, COLUMNS, BATCH, WIDTH, PROMPT = 6, 4, 4, 3, 9


def test_the_whole_tail_is_refilled():
    buffers = LaneBuffers(4, 2, 5, SLOTS, CPU, prompt_rows=2)
    copies, prompt = np.array([7, 8]), np.arange(1, 6)
    buffers.upload([LaneInput(slot, rows=3, copies=copies) for slot in range(3)] + [LaneInput(4, prompt)])
    assert buffers.prefill_rows.tolist() == [3, -1]
    assert buffers.lengths.tolist() == [3, 3, 3, 5]
    buffers.upload([LaneInput(3, np.array([2, 4])), LaneInput(1), LaneInput(0, np.array([6, 8]), finishes=False)])
    assert buffers.prefill_rows.tolist() == [0, 2]
    assert buffers.is_prompt().tolist() == buffers.is_host_prompt().tolist() == [True, False, True, False]
    assert buffers.lengths.tolist() == [2, 1, 2, 0]
    assert buffers.draws.tolist() == [1, 1, 0, 0]
    assert buffers.prompt.tolist() == [2, 4, 6, 8, 0]
    assert buffers.prompt_starts.tolist() == [0, 0, 2, 0]
    assert buffers.learned_lanes() == [1]
    buffers.upload([LaneInput(5, np.array([9]), finishes=False), LaneInput(1, rows=2, copies=copies)])
    assert buffers.slots.tolist() == [5, 1, SLOTS, SLOTS]
    assert buffers.lengths.tolist() == [1, 2, 0, 0]
    assert buffers.draws.tolist() == [0, 1, 0, 0]
    assert buffers.copied.tolist() == [0, 1, 0, 0]
    assert buffers.copies.tolist() == [[0, 0], [7, 0], [0, 0], [0, 0]]
    assert buffers.prompt.tolist() == [9, 0, 0, 0, 0]
    assert buffers.prompt_starts.tolist() == [0, 0, 0, 0]
    assert buffers.prefill_rows.tolist() == [0, -1]
    assert buffers.prefill_rows.dtype == torch.int32
    assert buffers.learned_lanes() == []
    buffers.upload([LaneInput(2, rows=3)])
    assert buffers.prefill_rows.tolist() == [-1, -1]
    assert buffers.learned_lanes() == [0]


def state_of(cursors) -> SlotState:
    """Slot s owns pages 10 s + 1, 10 s + 2, …"""
    state = SlotState(SLOTS, COLUMNS, 2, torch.float32)
    for slot, cursor in enumerate(cursors):
        state.open(slot)
        state.cursor[slot] = cursor
        state.set_pages(slot, 0, [10 * slot + 1 + column for column in range(COLUMNS)])
    return state


@given(
    slots=st.permutations(range(SLOTS)),
    lengths=st.lists(st.integers(1, WIDTH), min_size=1, max_size=BATCH),
    prompts=st.dictionaries(st.integers(0, BATCH - 1), st.integers(1, PROMPT // 3), max_size=3),
    cursors=st.lists(st.integers(1, 40), min_size=SLOTS, max_size=SLOTS),
    fixed=st.booleans(),
)
def test_rows_are_laid_lane_after_lane(slots, lengths, prompts, cursors, fixed):
    lane_inputs = [LaneInput(slots[lane], rows=length) for lane, length in enumerate(lengths)]
    for at, count in prompts.items():
        if at < len(lengths) and not fixed:
            lane_inputs[at] = LaneInput(slots[at], np.arange(100 * at, 100 * at + count))
    state = state_of(cursors)
    buffers = LaneBuffers(BATCH, WIDTH - 1, PROMPT, SLOTS, CPU, prompt_rows=3)
    buffers.upload(lane_inputs)
    row_count = BATCH * WIDTH if fixed else PROMPT + (BATCH - 1) * WIDTH
    tokens = torch.arange(BATCH * WIDTH).view(BATCH, WIDTH) + 1000
    rows = RowLayout(BATCH, row_count, WIDTH if fixed else None, CPU).lay(buffers.lengths, tokens, buffers, state)

    expected = [(0, 0, PADDING_WRITE_ROW)] * row_count
    row = 0
    for lane, given_lane in enumerate(lane_inputs):
        row = lane * WIDTH if fixed else row
        assert int(rows.starts[lane]) == row
        is_prompt = given_lane.prompt is not None
        for offset in range(len(given_lane.prompt) if is_prompt else given_lane.rows):
            position = cursors[given_lane.slot] + offset
            token = 100 * lane + offset if is_prompt else int(tokens[lane, offset])
            page = 10 * given_lane.slot + 1 + position // PAGE_TOKENS
            expected[row] = (token, position, page * PAGE_TOKENS + position % PAGE_TOKENS)
            row += 1
    columns = (rows.token_ids, rows.positions, rows.write_rows)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


def test_no_row_is_written_into_the_zero_row_whatever_the_page_table_lacks():
    state = state_of([1])
    state.page_table[0, 1:] = PADDING_PAGE
    positions = torch.arange(15, 19)
    rows = kv_rows(state, torch.zeros(4, dtype=torch.int64), positions, torch.ones(4, dtype=torch.bool))
    assert rows.tolist() == [PAGE_TOKENS + 15, *[PADDING_WRITE_ROW] * 3]


@pytest.mark.parametrize("last", [-1, 0, 15, 16, 31])
def test_positions_after_the_last_one_read_the_zero_row(last):
    (rows,) = read_rows(torch.tensor([[5, 9]]), torch.tensor([last])).tolist()
    own = [*range(80, 96), *range(144, 160)][: last + 1]
    assert rows == own + [ZERO_ROW] * (32 - len(own))
