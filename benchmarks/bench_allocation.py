"""How long device allocation takes on a CPU: the torch twin, and the plain greedy loop beside it.

    python benchmarks/bench_allocation.py [--calls 2000] [--seed 0]

Every lane is active and may use all its rows; joint probabilities are products of uniform confidences. Each cell is
the median CPU time of single calls in one thread, the two forms taking turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from gpu.allocation.torch_twin import allocate_rows
from gpu.reference import allocation as reference

DEPTHS = 7
TARGET_ROWS = {8: (8, 16, 32, 63), 64: (64, 128, 256, 511)}
REFERENCE_SHARE = 20  # the loop is slow: one call of it for so many of the twin's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("lanes", "drafts", "target rows", "torch twin, CPU us", "greedy loop, CPU us")
    for lanes, all_rows in TARGET_ROWS.items():
        for target_rows in all_rows:
            twin, loop = measure(lanes, target_rows, options.calls, options.seed)
            table.add_row(str(lanes), str(DEPTHS), str(target_rows), f"{twin:.0f}", f"{loop:.0f}")
    Console().print(table)


def measure(lanes: int, target_rows: int, calls: int, seed: int) -> tuple[float, float]:
    """Median CPU microseconds of the twin and of the loop."""
    generator = torch.Generator().manual_seed(seed)
    joint = torch.rand((lanes, DEPTHS), generator=generator).cumprod(dim=1)
    limits = torch.full((lanes,), DEPTHS + 1)
    slots = torch.randperm(lanes, generator=generator)
    rows = torch.zeros(lanes, dtype=torch.int64)
    lists = joint.tolist(), limits.tolist(), slots.tolist()
    twin, loop = [], []
    for call in range(calls):
        twin.append(microseconds(lambda: allocate_rows(joint, limits, slots, target_rows, rows)))
        if call % REFERENCE_SHARE == 0:
            loop.append(microseconds(lambda: reference.allocate_rows(*lists, target_rows)))
    assert rows.tolist() == reference.allocate_rows(*lists, target_rows)
    return statistics.median(twin), statistics.median(loop)


def microseconds(call: Callable[[], object]) -> float:
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e3


if __name__ == "__main__":
    main()
