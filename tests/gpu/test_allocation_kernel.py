"""The CUDA kernel's source on a CPU: g++, threads in random orders, and faults that must be noticed."""

from __future__ import annotations

import random

import numpy as np
import pytest
from allocation_cases import Case, allocation_case, allocation_cases
from cuda_harness import KernelBuilder, KernelFault, run_cases

from gpu.allocation.buffers import MAX_DRAFTS
from gpu.allocation.cupy_kernel import KERNEL_SOURCE

SOURCE = KERNEL_SOURCE.read_text()
FIRST_BARRIER = "    __syncthreads();\n    for (int lane = warp;"
SECOND_BARRIER = "    __syncthreads();\n\n    int active"
COUNT = SOURCE[SOURCE.index("    int active = 0;") : SOURCE.index("    const int left")]
SHARED_COUNT = """\
    __shared__ int active;
    if (threadIdx.x == 0) {
        active = 0;
    }
    __syncthreads();
    for (int lane = static_cast<int>(threadIdx.x); lane < lanes; lane += static_cast<int>(blockDim.x)) {
        if (offered[lane] >= 0) {
            ADD_ONE;
        }
    }
    __syncthreads();
"""
FAULTS = {
    "limits and slots without a barrier": (FIRST_BARRIER, FIRST_BARRIER.replace("__syncthreads();", ""), "a race"),
    "keys without a barrier": (SECOND_BARRIER, SECOND_BARRIER.replace("__syncthreads();", ""), "a race"),
    "a count that is not atomic": (COUNT, SHARED_COUNT.replace("ADD_ONE", "active += 1"), "a race"),
    "a barrier for one warp": (
        SECOND_BARRIER,
        SECOND_BARRIER.replace("\n\n", "\n    if (warp == 0) __syncthreads();\n\n"),
        "only some threads",
    ),
    "a sum for some threads": (
        "            before = __reduce_add_sync",
        "            if (column < lanes) before = __reduce_add_sync",
        "only some threads",
    ),
    "a sum for part of the warp's mask": (
        "            before = __reduce_add_sync(WHOLE_WARP,",
        "            before = __reduce_add_sync((1u << column) | 1u,",
        "not the whole warp",
    ),
    "depths that do not exist": ("index < draft_depth ? joint[index] : 0.0f", "joint[index]", "a read outside"),
}
MISTAKES = {
    "ties by lane": (": lane_slots[other] < slot;", ": other < lane;"),
    "ties by depth, deepest first": ("(MAX_DRAFTS - depth)", "(depth)"),
    "scores that rise": ("score = fminf(score, earlier);", ""),
    "scores that rise from the 32nd depth": ("lowest = __shfl_sync(WHOLE_WARP, score, WARP - 1);", ""),
    "one row more": ("if (before < left)", "if (before <= left)"),
    "limits ignored": (": drafts < draft_depth ? static_cast<int>(drafts) : draft_depth;", ": draft_depth;"),
    "no row where nothing is pending": ("offered[lane] < 0 ? 0 : 1 + kept", "1 + kept"),
}


# After 32 depths, which one warp handles at a time, the scores rise above those of the other lane.
RISING = Case(
    np.array([[0.8] * 31 + [0.5] + [0.7] * 18, [0.6] * 50], dtype=np.float32), np.array([51, 51]), np.array([0, 1]), 42
)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> KernelBuilder:
    return KernelBuilder(tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="module")
def kernel(builder):
    return builder.build("kernel", SOURCE)


@pytest.fixture(scope="module")
def few_cases() -> list[Case]:
    dice = random.Random(8)
    deep = [allocation_case(dice, lanes=2, depths=MAX_DRAFTS) for _ in range(10)]
    return [RISING, *deep, *allocation_cases(seed=7, small=150, large=6)]


def edited(old: str, new: str) -> str:
    assert SOURCE.count(old) == 1, "the planted fault no longer fits the source"
    return SOURCE.replace(old, new)


def test_the_kernel_gives_the_references_rows(kernel):
    cases = allocation_cases(seed=3, small=2000, large=30)
    assert run_cases(kernel, cases) == [case.expected() for case in cases]


def test_the_running_minimum_is_carried_from_32_depths_to_the_next(kernel):
    assert run_cases(kernel, [RISING]) == [[32, 10]] == [RISING.expected()]


def test_the_order_of_threads_changes_nothing(kernel):
    case = allocation_case(random.Random(11), lanes=20, depths=7)
    assert {tuple(run_cases(kernel, [case], seed)[0]) for seed in range(25)} == {tuple(case.expected())}


@pytest.mark.parametrize("value", [np.nan, -0.0, -1.0])
def test_what_is_no_probability_counts_as_0(kernel, value):
    joint = np.array([[value, 0.5], [0.25, 0.25], [0.0, 0.0]], dtype=np.float32)
    case = Case(joint, np.array([3, 3, 3]), np.array([2, 1, 0]), 6)
    assert run_cases(kernel, [case]) == [[1, 3, 2]]


def test_pending_rows_are_given_even_where_they_do_not_fit(kernel):
    joint = np.ones((3, 2), dtype=np.float32)
    assert run_cases(kernel, [Case(joint, np.array([3, 0, 3]), np.array([2, 1, 0]), 1)]) == [[1, 0, 1]]


@pytest.mark.parametrize(("old", "new", "message"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_stops_the_kernel(builder, few_cases, old, new, message):
    faulty = builder.build("faulty", edited(old, new))
    with pytest.raises(KernelFault, match=message):
        run_cases(faulty, few_cases)


@pytest.mark.parametrize(("old", "new"), MISTAKES.values(), ids=MISTAKES)
def test_a_planted_mistake_gives_other_rows(builder, few_cases, old, new):
    mistaken = builder.build("mistaken", edited(old, new))
    assert run_cases(mistaken, few_cases) != [case.expected() for case in few_cases]


def test_the_same_count_with_atomics_is_right(builder, few_cases):
    """What is found in the count that is not atomic is its race, not something else."""
    counted = builder.build("atomic", edited(COUNT, SHARED_COUNT.replace("ADD_ONE", "atomicAdd(&active, 1)")))
    assert run_cases(counted, few_cases) == [case.expected() for case in few_cases]
