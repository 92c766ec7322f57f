"""What the decision log costs the engine: CPU per plan with eight lanes, the checkpoint, and the bytes of both.

    python -m benchmarks.bench_decision_log [--plans N] [--json]

Every plan is made by a scheduler that writes its log and by one that does not, in turn; CPU time of this thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import zlib
from typing import Any

import numpy as np

from scheduler.capacity import speculative_shapes
from scheduler.catalog import Catalog
from scheduler.plans import ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import CompletionRecord, ExecutionTiming, RequestSpec
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import GraphKind, GraphShape
from service.engine.decision_log import LoggedScheduler

MS = 1_000_000
LANES = 8
CONTEXT = 1 << 20


def shapes(drafts: int) -> tuple[GraphShape, ...]:
    prefill = [GraphShape(GraphKind.PREFILL, 1, prefill_capacity=c) for c in (64, 128, 256, 512)]
    state = [
        GraphShape(kind, batch)
        for kind in (GraphKind.INIT, GraphKind.RESTORE, GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT)
        for batch in (1, 4)
    ]
    return (*prefill, *speculative_shapes((1, 2, 4, 8, 16, 32, 64), drafts, 512), *state)


class Load:
    """One scheduler with `requests` decoding requests."""

    def __init__(self, kind: type[RequestScheduler], drafts: int, requests: int) -> None:
        self.scheduler = kind(Catalog(shapes(drafts)), PolicyConfig.balanced())
        self.drafts, self.fence, self.cpu_ns = drafts, 0, 0
        self.scheduler.advance_to(MS)
        self.scheduler.set_resources(1 << 20, 0)
        for number in range(requests):
            self.scheduler.admit(RequestSpec(f"chatcmpl-{number:032d}", 64, CONTEXT, 2 * CONTEXT))
        while any(self.step() != requests for _ in range(4)):
            pass
        self.rounds = 0

    def step(self) -> int:
        """One plan, committed, completed and published; returns its decoding lanes."""
        scheduler = self.scheduler
        plan = scheduler.plan()
        assert plan is not None
        records, rows = self._results(plan)
        began_ns = time.thread_time_ns()
        self.fence += 1
        scheduler.commit(plan, self.fence)
        scheduler.advance_to(scheduler.now_ns + 3 * MS)
        timing = ExecutionTiming((2 * MS,), 2_500_000)
        if rows is None:
            tokens = scheduler.complete(self.fence, records, timing)
        else:
            tokens = scheduler.complete_with_survival(self.fence, records, timing, rows)
        visible = list(dict.fromkeys(token.handle for token in tokens))
        scheduler.published_outputs(visible, self.fence)
        scheduler.set_resources(1 << 20, 0)
        self.size = 0
        if isinstance(scheduler, LoggedScheduler):
            calls = scheduler.take_calls()
            self.size = len(calls.data) if calls is not None else 0
        self.cpu_ns += time.thread_time_ns() - began_ns
        return sum(lane.role.value == "decode" for lane in plan.lanes)

    def _results(self, plan: ScheduledPlan) -> tuple[list[CompletionRecord], Any]:
        records: list[CompletionRecord] = []
        rows = None
        if self.drafts and plan.shape.draft_depth:
            rows = np.full((self.scheduler.request_slots, self.scheduler.draft_capacity), np.nan)
        for lane in plan.lanes:
            accepted = max(0, min(2, lane.ceiling - 1)) if lane.role.value == "decode" else 0
            emitted = accepted + 1 if lane.ceiling else 0
            records.append(CompletionRecord(lane.handle, lane.prompt_tokens, (7,) * emitted, accepted))
            if rows is not None:
                rows[lane.handle.slot, : lane.ceiling - 1] = 0.5
        return records, rows


def per_plan(drafts: int, plans: int) -> dict[str, float]:
    """CPU µs per plan with and without the log, by the median and the best of blocks of 50 plans in turn."""
    plain, logged = Load(RequestScheduler, drafts, LANES), Load(LoggedScheduler, drafts, LANES)
    costs: dict[str, list[float]] = {"plain": [], "logged": []}
    sizes = []
    for _ in range(plans // 50):
        for name, load in (("plain", plain), ("logged", logged)):
            load.cpu_ns = 0
            for _ in range(50):
                load.step()
                if load is logged:
                    sizes.append(load.size)
            costs[name].append(load.cpu_ns / 50e3)
    medians = {name: statistics.median(of) for name, of in costs.items()}
    best = {name: min(of) for name, of in costs.items()}
    return {
        "drafts": drafts,
        "without_us": round(medians["plain"], 2),
        "with_us": round(medians["logged"], 2),
        "log_us": round(medians["logged"] - medians["plain"], 2),
        "best_without_us": round(best["plain"], 2),
        "best_log_us": round(best["logged"] - best["plain"], 2),
        "bytes": round(statistics.mean(sizes)),
    }


def checkpoint(requests: int) -> dict[str, float]:
    """CPU ms of a checkpoint with its compression, and its bytes."""
    scheduler = Load(LoggedScheduler, 4, requests).scheduler
    assert isinstance(scheduler, LoggedScheduler)
    times = []
    for _ in range(50):
        scheduler.advance_to(scheduler.now_ns + 1)
        scheduler.published_snapshot("nobody")
        began_ns = time.thread_time_ns()
        taken = scheduler.take_checkpoint()
        times.append((time.thread_time_ns() - began_ns) / MS)
    size = len(taken[-1].data)
    return {
        "requests": requests,
        "median_ms": round(statistics.median(times), 3),
        "largest_ms": round(max(times), 3),
        "bytes": size,
        "uncompressed": len(zlib.decompress(taken[-1].data)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [{"what": "log", **per_plan(drafts, arguments.plans)} for drafts in (0, 4)]
    rows += [{"what": "checkpoint", **checkpoint(requests)} for requests in (1, 64)]
    if arguments.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
