"""Lanes may attend in any groups; groups cover all lanes and stay small."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu.model.config import ModelConfig
from gpu.pages import PAGE_TOKENS
from gpu.programs.attention import LaneGroup, LaneWindow, group_lanes

TOKEN_BYTES = 768
CONFIG = ModelConfig(
    vocab_size=8,
    hidden_size=32,
    intermediate_size=32,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=8,
    context_tokens=256,
    norm_epsilon=1e-5,
    rope_theta=10000.0,
    tied_embeddings=True,
)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=40))
def test_groups_cover_the_lanes_and_hold_their_tokens(tokens):
    groups = group_lanes(tokens, TOKEN_BYTES)
    assert [lane for group in groups for lane in range(group.first, group.last)] == list(range(len(tokens)))
    for group in groups:
        assert group.columns * PAGE_TOKENS >= max(tokens[group.first : group.last])
        count = group.last - group.first
        assert count == 1 or count * group.columns * PAGE_TOKENS * TOKEN_BYTES <= 512 * 1024


def test_short_lanes_share_a_group_and_long_ones_do_not():
    assert group_lanes([100] * 4, TOKEN_BYTES) == (LaneGroup(0, 4, 7),)
    assert group_lanes([528, 528], TOKEN_BYTES) == (LaneGroup(0, 1, 33), LaneGroup(1, 2, 33))
    assert group_lanes([0], TOKEN_BYTES) == (LaneGroup(0, 1, 1),)


@pytest.mark.parametrize("width", [1, 3])
def test_groups_do_not_change_what_a_lane_gets(width):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([1, 17, 40, 64, 5])
    cursors, rows = lengths - 1, torch.full((5,), width)
    columns = 5
    pages = torch.randperm(5 * columns, generator=generator).view(5, columns) + 1
    kv = [torch.randn((26 * PAGE_TOKENS, 16), generator=generator) for _ in range(2)]
    for memory in kv:
        memory[:PAGE_TOKENS] = 0
    query = torch.randn((5 * width, 4, 8), generator=generator)
    groupings = [
        [LaneGroup(0, 5, columns)],
        [LaneGroup(0, 2, 2), LaneGroup(2, 5, 5)],
        group_lanes((cursors + rows).tolist(), 10**6),
    ]
    results = [
        LaneWindow(CONFIG, pages, cursors, rows, width, torch.float32, groups).attend(*kv, query)
        for groups in groupings
    ]
    assert len(groupings[2]) == 5
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])
