"""Static inputs hold exactly the lanes and legal padding, whatever ran before."""

import pytest
from lane_works import resident, tokens_at

from gpu.pages import PADDING_PAGE, PADDING_WRITE_ROW, ZERO_ROW
from gpu.programs.buffers import ProgramBuffers


def test_the_whole_tail_is_refilled():
    buffers = ProgramBuffers(lanes=4, rows=4, columns=8)
    long = [resident([1] * 100, first_page=1 + 8 * lane) for lane in range(4)]
    buffers.fill(tuple(tokens_at(request, [9], 100) for request in long))
    buffers.fill((tokens_at(resident([1] * 4, outputs=20, first_page=50), [7], 17),))
    assert buffers.token_ids.tolist() == [7, 0, 0, 0]
    assert buffers.positions.tolist() == [17, 0, 0, 0]
    assert buffers.write_rows.tolist() == [51 * 16 + 1] + [PADDING_WRITE_ROW] * 3
    assert buffers.page_table.tolist() == [[50, 51] + [PADDING_PAGE] * 6] + [[PADDING_PAGE] * 8] * 3


@pytest.mark.parametrize(
    ("position", "columns"), [(0, 1), (15, 1), (16, 2), (31, 2), (32, 3), (63, 4), (64, 5), (127, 8)]
)
def test_the_page_columns_follow_the_longest_lane(position, columns):
    buffers = ProgramBuffers(lanes=2, rows=2, columns=8)
    works = (tokens_at(resident([1] * 112), [9], 0), tokens_at(resident([1] * 112), [9], position))
    assert buffers.fill(works) == columns


def test_positions_after_the_last_one_read_the_zero_row():
    buffers = ProgramBuffers(lanes=2, rows=2, columns=8)
    columns = buffers.fill((tokens_at(resident([1] * 30, first_page=5), [9], 17),))
    lane, padding = buffers.read_rows(columns, buffers.positions).tolist()
    assert lane == list(range(80, 98)) + [ZERO_ROW] * 14
    assert padding == [PADDING_WRITE_ROW] + [ZERO_ROW] * 31
