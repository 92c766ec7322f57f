"""Device allocation: the greedy loop, its torch twin, and the scheduler's model of both."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from allocation_cases import Case, allocation_case, allocation_cases
from hypothesis import given
from hypothesis import strategies as st

from gpu.allocation import create_allocator
from gpu.allocation.torch_twin import allocate_rows
from gpu.device import InvalidFrame, InvalidSettings
from gpu.reference import allocation as reference
from scheduler.reference import ragged, value
from scheduler.reference.residents import Stage
from scheduler.shapes import Allocation, GraphKind, GraphShape

seeded_cases = st.integers(0, 2**32).map(lambda seed: allocation_case(random.Random(seed)))


def test_rows_go_to_the_likeliest_next_draft():
    joint = [[0.9, 0.8, 0.1], [0.5, 0.4, 0.3]]
    rows = [reference.allocate_rows(joint, [4, 4], [0, 1], rows) for rows in range(2, 10)]
    assert rows == [[1, 1], [2, 1], [3, 1], [3, 2], [3, 3], [3, 4], [4, 4], [4, 4]]


def test_ties_go_to_the_shorter_prefix_then_to_the_lower_slot():
    joint = [[0.5, 0.5], [0.5, 0.5]]
    rows = [reference.allocate_rows(joint, [3, 3], [9, 4], rows) for rows in range(2, 7)]
    assert rows == [[1, 1], [1, 2], [2, 2], [2, 3], [3, 3]]


def test_drafts_of_probability_0_get_what_is_left_and_limits_hold():
    assert reference.allocate_rows([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]], [3, 2, 0], [0, 1, 2], 9) == [3, 2, 0]


def test_too_few_rows_for_the_pending_tokens_are_refused():
    with pytest.raises(InvalidFrame, match="2 active lanes need a row each"):
        reference.allocate_rows([[1.0], [1.0]], [2, 1], [0, 1], 1)


def test_the_twin_gives_the_references_rows():
    cases = allocation_cases(seed=1, small=1500, large=30)
    assert [case.rows_of(allocate_rows) for case in cases] == [case.expected() for case in cases]


@pytest.mark.parametrize("number", [np.nan, -0.0, -1.0])
def test_what_is_no_probability_counts_as_0(number):
    joint = np.array([[number, 0.5], [0.25, 0.25], [0.0, 0.0]], dtype=np.float32)
    case = Case(joint, np.array([3, 3, 3]), np.array([2, 1, 0]), 6)
    assert case.rows_of(allocate_rows) == case.expected() == [1, 3, 2]


def test_the_twin_gives_pending_rows_even_where_they_do_not_fit():
    joint = np.ones((3, 2), dtype=np.float32)
    assert Case(joint, np.array([3, 0, 3]), np.array([2, 1, 0]), 1).rows_of(allocate_rows) == [1, 0, 1]


def test_nothing_in_the_twin_depends_on_values():
    """Meta tensors have no values: reading one, or a shape made from one, is an error."""
    joint, whole = torch.empty((4, 3), device="meta"), torch.empty(4, dtype=torch.int64, device="meta")
    allocate_rows(joint, whole, whole, 9, torch.empty_like(whole))


@given(seeded_cases)
def test_no_row_is_wasted_and_none_given_twice(case):
    rows = case.rows_of(allocate_rows)
    most = np.minimum(case.limits, case.joint.shape[1] + 1)
    assert all(min(limit, 1) <= own <= limit for own, limit in zip(rows, most, strict=True))
    assert sum(rows) == min(case.target_rows, most.sum())


@given(seeded_cases)
def test_one_row_more_is_one_draft_more_for_one_lane(case):
    rows, more = (dataclasses.replace(case, target_rows=case.target_rows + by).rows_of(allocate_rows) for by in (0, 1))
    gains = [b - a for a, b in zip(rows, more, strict=True)]
    assert sorted(gains)[:-1] == [0] * (len(rows) - 1)
    assert max(gains) == min(1, int(np.minimum(case.limits, case.joint.shape[1] + 1).sum()) - sum(rows))


@given(seeded_cases, st.randoms(use_true_random=False))
def test_the_order_of_lanes_changes_nothing(case, dice):
    order = dice.sample(range(len(case.limits)), len(case.limits))
    moved = Case(case.joint[order], case.limits[order], case.slots[order], case.target_rows)
    rows = case.rows_of(allocate_rows)
    assert moved.rows_of(allocate_rows) == [rows[lane] for lane in order]


def scheduler_rows(case: Case) -> list[int]:
    """The rows that the scheduler expects of this cohort, which has active lanes only."""
    lanes, depths = case.joint.shape
    survival = np.minimum.accumulate(case.joint, axis=1).tolist()
    resident = SimpleNamespace(stage=Stage.DECODE)
    leading = [
        SimpleNamespace(slot=int(slot), resident=resident, survival=(None, falling))
        for slot, falling in zip(case.slots, survival, strict=True)
    ]
    shape = GraphShape(GraphKind.SPECULATIVE, lanes, depths, depths + 1, case.target_rows, allocation=Allocation.DEVICE)
    context = SimpleNamespace(frontiers=(None, value._frontier(leading, True)))
    parts = [[None] * min(int(limit), depths + 1) for limit in case.limits]
    return ragged._Prefixes(context, SimpleNamespace(shape=shape), leading, parts).allocation(lanes)


def test_the_scheduler_expects_these_rows():
    dice = random.Random(5)
    compared = 0
    for _ in range(1500):
        case = allocation_case(dice)
        lanes, depths = case.joint.shape
        if case.limits.all() and case.target_rows <= lanes * (depths + 1):
            assert scheduler_rows(case) == case.expected()
            compared += 1
    assert compared > 500


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"joint": torch.ones(2, 0)}, r"joint has the shape \[2, 0\]"),
        ({"joint": torch.ones(65, 3)}, r"joint has the shape \[65, 3\]"),
        ({"joint": torch.ones(2, 64)}, r"joint has the shape \[2, 64\]"),
        ({"joint": torch.ones(2, 3, dtype=torch.float64)}, "joint is torch.float64"),
        ({"joint": torch.ones(3, 2).T}, "joint is torch.float32; it must be contiguous"),
        ({"limits": torch.ones(2)}, "limits is torch.float32"),
        ({"slots": torch.ones(3, dtype=torch.int64)}, r"slots is torch.int64 \[3\]"),
        ({"rows": torch.ones(4, dtype=torch.int64)[::2]}, "rows is torch.int64"),
        ({"rows": torch.ones(2, dtype=torch.int64, device="meta")}, "rows is on meta, joint on cpu"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changed, message):
    ones = torch.ones(2, dtype=torch.int64)
    tensors = {"joint": torch.ones(2, 3), "limits": ones, "slots": ones, "rows": ones} | changed
    with pytest.raises(InvalidSettings, match=message):
        allocate_rows(target_rows=3, **tensors)


def test_a_cpu_takes_the_twin():
    assert create_allocator(torch.device("cpu")) is allocate_rows
