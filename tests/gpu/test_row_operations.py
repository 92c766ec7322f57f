"""The compiled loops over rows give what torch's operations give, and where they stand in for these."""

from __future__ import annotations

import pytest
import torch

from gpu.model.row_operations import TORCH_ROWS, HostRows, row_operations

EPSILON = 1e-5
CPU = torch.device("cpu")


@pytest.fixture
def few_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 64), (16, 257)])
def test_norms_are_torchs(rows, width):
    torch.manual_seed(rows)
    x, addend, weight = torch.randn(rows, width) * 5, torch.randn(rows, width), torch.randn(width)
    assert torch.allclose(HostRows().norm(x, weight, EPSILON), TORCH_ROWS.norm(x, weight, EPSILON), atol=1e-6)
    ours, theirs = x.clone(), x.clone()
    normed = HostRows().add_and_norm(ours, addend, weight, EPSILON)
    assert torch.allclose(normed, TORCH_ROWS.add_and_norm(theirs, addend, weight, EPSILON), atol=1e-6)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("queries", [0, 1, 6])
def test_heads_are_split_and_rotated_as_torch_does(queries):
    rows, kv_heads, dim = 5, 2, 16
    torch.manual_seed(queries)
    fused = torch.randn(rows, queries + 2 * kv_heads, dim)
    angles = torch.rand(rows, 1, dim) * 7
    rotation = angles.cos(), angles.sin()
    for ours, theirs in zip(
        HostRows().split_heads(fused, rotation, kv_heads),
        TORCH_ROWS.split_heads(fused, rotation, kv_heads),
        strict=True,
    ):
        assert ours.shape == theirs.shape
        assert ours.is_contiguous()
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_stays_so_and_touches_no_other(bad):
    torch.manual_seed(1)
    x, weight = torch.randn(4, 32), torch.randn(32)
    clean = HostRows().norm(x, weight, EPSILON)
    x[2, 7] = bad
    normed = HostRows().norm(x, weight, EPSILON)
    summed = HostRows().add_and_norm(x.clone(), torch.zeros(4, 32), weight, EPSILON)
    for found in (normed, summed):
        assert not found[2].isfinite().all()
        assert torch.equal(found[[0, 1, 3]], clean[[0, 1, 3]])
    fused, ones = torch.randn(4, 3, 8), torch.ones(4, 1, 8)
    clean_heads = HostRows().split_heads(fused, (ones, ones), 1)
    fused[2] = bad
    for found, before in zip(HostRows().split_heads(fused, (ones, ones), 1), clean_heads, strict=True):
        assert not found[2].isfinite().all()
        assert torch.equal(found[[0, 1, 3]], before[[0, 1, 3]])


def test_a_rows_result_does_not_depend_on_how_many_there_are():
    torch.manual_seed(2)
    x, addend, weight = torch.randn(9, 96), torch.randn(9, 96), torch.randn(96)
    whole = HostRows().add_and_norm(x.clone(), addend, weight, EPSILON)
    for row in range(9):
        alone = HostRows().add_and_norm(x[row : row + 1].clone(), addend[row : row + 1], weight, EPSILON)
        assert torch.equal(alone[0], whole[row])


@pytest.mark.usefixtures("few_threads")
def test_the_loops_stand_in_only_where_they_can():
    assert isinstance(row_operations(torch.float32, CPU, eager=True), HostRows)
    assert row_operations(torch.float32, CPU, eager=False) is TORCH_ROWS
    assert row_operations(torch.bfloat16, CPU, eager=True) is TORCH_ROWS
    assert row_operations(torch.float32, torch.device("cuda"), eager=True) is TORCH_ROWS
    torch.set_num_threads(3)
    assert row_operations(torch.float32, CPU, eager=True) is TORCH_ROWS
