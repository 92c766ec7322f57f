"""A decode step that reads pages in place computes what torch's own operations do, and touches nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.model.config import ModelConfig
from gpu.pages import PAGE_TOKENS
from gpu.programs.attention import LaneGroup, LaneWindow
from gpu.programs.paged_attention import PagedWindow, load_kernel


def config(kv_heads, group, dim):
    heads = kv_heads * group
    return ModelConfig(
        vocab_size=8,
        hidden_size=heads * dim,
        intermediate_size=32,
        layers=1,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        context_tokens=256,
        norm_epsilon=1e-5,
        rope_theta=10000.0,
        tied_embeddings=True,
    )


@st.composite
def windows(draw):
    """(config, cursors, lengths, seed): lanes with and without a row, on one to four pages."""
    few = st.sampled_from([1, 2, 3])
    shape = config(draw(few), draw(few), draw(st.sampled_from([2, 8, 64])))
    cursors = draw(st.lists(st.integers(0, 4 * PAGE_TOKENS - 1), min_size=1, max_size=6))
    lengths = draw(st.lists(st.sampled_from([0, 1, 1]), min_size=len(cursors), max_size=len(cursors)))
    return shape, torch.tensor(cursors), torch.tensor(lengths), draw(st.integers(0, 2**31))


def memory(shape, lanes, seed):
    """(pages [lanes, 4], keys, values, query): pages scattered over the pool."""
    generator = torch.Generator().manual_seed(seed)
    pages = torch.randperm(4 * lanes, generator=generator).view(lanes, 4) + 1
    rows, width = (4 * lanes + 1) * PAGE_TOKENS, shape.kv_heads * shape.head_dim
    keys, values = (torch.randn((rows, width), generator=generator) for _ in range(2))
    keys[:PAGE_TOKENS] = values[:PAGE_TOKENS] = 0
    return pages, keys, values, 3 * torch.randn((lanes, shape.heads, shape.head_dim), generator=generator)


def paged_window(shape, *tensors):
    return PagedWindow(shape, *(tensor.numpy() for tensor in tensors))


@settings(deadline=None)
@given(windows())
def test_lanes_get_what_torch_computes(window):
    shape, cursors, lengths, seed = window
    lanes = len(cursors)
    pages, keys, values, query = memory(shape, lanes, seed)
    group = [LaneGroup(0, lanes, 4)]
    expected = LaneWindow(shape, pages, cursors, torch.ones_like(lengths), 1, torch.float32, group).attend(
        keys, values, query
    )
    mixed = paged_window(shape, pages, cursors, lengths).attend(keys, values, query)
    torch.testing.assert_close(mixed, torch.where(lengths[:, None] > 0, expected, 0), rtol=1e-4, atol=1e-5)


@settings(deadline=None)
@given(windows())
def test_only_tokens_up_to_the_row_are_read(window):
    shape, cursors, lengths, seed = window
    pages, keys, values, query = memory(shape, len(cursors), seed)
    expected = paged_window(shape, pages, cursors, lengths).attend(keys, values, query)
    readable = torch.zeros(len(keys), dtype=torch.bool)
    for lane, (cursor, length) in enumerate(zip(cursors.tolist(), lengths.tolist(), strict=True)):
        positions = torch.arange(cursor + 1 if length else 0)
        readable[pages[lane, positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS] = True
    keys[~readable] = values[~readable] = torch.nan
    assert torch.equal(paged_window(shape, pages, cursors, lengths).attend(keys, values, query), expected)


@pytest.mark.parametrize("poisoned", ["keys", "values", "query"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_shows_in_its_lane_alone(poisoned, value):
    shape, cursors, lengths = config(2, 2, 8), torch.tensor([20, 40]), torch.tensor([1, 1])
    pages, keys, values, query = memory(shape, 2, 5)
    clean = paged_window(shape, pages, cursors, lengths).attend(keys, values, query)
    row = pages[0, 1] * PAGE_TOKENS
    target = {"keys": keys[row], "values": values[row], "query": query[0]}[poisoned]
    target[..., :8] = value
    mixed = paged_window(shape, pages, cursors, lengths).attend(keys, values, query)
    assert not mixed[0].isfinite().all()
    assert torch.equal(mixed[1], clean[1])


def test_a_lane_does_not_depend_on_its_neighbours():
    shape, cursors = config(3, 3, 64), torch.tensor([5, 33, 60])
    pages, keys, values, query = memory(shape, 3, 9)
    together = paged_window(shape, pages, cursors, torch.ones(3, dtype=torch.int64)).attend(keys, values, query)
    for lane in range(3):
        only = slice(lane, lane + 1)
        alone = paged_window(shape, pages[only], cursors[only], torch.ones(1, dtype=torch.int64))
        assert torch.equal(alone.attend(keys, values, query[only])[0], together[lane])


def test_the_kernel_compiles_nothing_while_serving():
    with pytest.raises(TypeError, match="No matching definition"):
        load_kernel()(*[np.zeros((1, 1), dtype=np.float64)] * 9)
