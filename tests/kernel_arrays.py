"""The scheduler's arrays for tests that call completion kernels directly, and those calls with fewer arguments."""

from __future__ import annotations

import math

import numpy as np

from scheduler import layout
from scheduler.acceptance import Acceptance
from scheduler.kernels.loader import load_kernels


class KernelArrays:
    """S slots, D depths, `graphs` as dicts of layout.GRAPH fields; every slot is free at first."""

    def __init__(self, slots=4, depth=3, graphs=(), capacities=1, alpha=1.0, adaptation_ms=100.0, newcomer=0):
        self.kernels = load_kernels()
        self.slots = layout.zeros(layout.SLOT, slots)
        self.graphs = layout.zeros(layout.GRAPH, len(graphs) or 1)
        for record, fields in zip(self.graphs, graphs, strict=False):
            for name, value in fields.items():
                record[name] = value
        self.policy = layout.zeros(layout.POLICY, 1)
        self.policy["alpha"], self.policy["adaptation_ms"], self.policy["newcomer"] = alpha, adaptation_ms, newcomer
        self.frames = layout.zeros(layout.FRAME, layout.FRAMES)
        self.lanes = layout.zeros(layout.LANE, layout.FRAMES * slots).reshape(layout.FRAMES, slots)
        self.participants = layout.zeros(layout.PARTICIPANT, layout.FRAMES * slots).reshape(layout.FRAMES, slots)
        self.work = np.zeros((slots, capacities), np.int64)
        self.acceptance = Acceptance(slots, depth)
        self.queue = []
        self.completed = -1

    def admit(
        self, slot, generation=1, stage=layout.DECODE, prompt=10, consumed=None, limit=1000, source=layout.LEARNED
    ):
        record = self.slots[slot]
        record["stage"], record["generation"] = stage, generation
        record["prompt_tokens"] = prompt
        record["consumed"] = (prompt if stage == layout.DECODE else 0) if consumed is None else consumed
        record["output_limit"], record["source"], record["drafts"] = limit, source, layout.UNBOUNDED
        record["token_memory"] = record["delivery_memory"] = math.nan
        record["last_visible_ns"] = -1
        a = self.acceptance
        self.kernels.admit_slot(
            *(slot, self.slots, self.graphs, self.policy),
            *(a.estimates, a.prior, a.pool, a.survival, a.yields, self.work),
        )

    def commit(self, lanes, graph=0, cost_ns=0, end_ns=0, tick=1):
        """`lanes`: dicts of layout.LANE fields, of the slots' present requests. Returns the frame's index."""
        frame = next(i for i in range(layout.FRAMES) if i not in self.queue and i != self.completed)
        cohort = layout.zeros(layout.LANE, len(lanes))
        for record, fields in zip(cohort, lanes, strict=True):
            slot = self.slots[fields["slot"]]
            for name in layout.LANE.names:
                record[name] = fields.get(name, slot[name] if name in ("generation", "epoch") else 0)
        pages = self.kernels.commit_frame(
            *(frame, 1, graph, 0, int(cost_ns > 0), cost_ns, int(bool(self.queue)), 0, end_ns),
            *(tick, 0, layout.UNBOUNDED, 0),
            *(cohort, self.slots, self.graphs, self.frames, self.lanes, self.participants),
            *(self.acceptance.yields, self.work),
        )
        assert pages == 0
        self.queue.append(frame)
        return frame

    def complete(self, did, now_ns=0, interval_ns=0, earned_ms=0.0, survival=None, confidence=None, optimistic=1):
        """Completes the oldest frame; `did`: layout.DID_* of each lane. Returns for how many there is more to do."""
        a, self.completed = self.acceptance, self.queue.pop(0)
        more = self.kernels.complete_frame(
            *(self.completed, now_ns, interval_ns, earned_ms, optimistic, -1, 0),
            np.array(did, np.int8).reshape(-1, layout.DID_COLUMNS),
            np.zeros((2, len(self.slots)), np.int64),
            *(self.slots, self.graphs, self.policy, self.frames, self.lanes, self.participants),
            *(a.estimates, a.prior, a.pool, a.survival, a.yields, a.decay, self.work),
            a.no_survival if survival is None else survival,
            a.no_confidence if confidence is None else confidence,
        )
        if more:
            self.kernels.start_memories(self.slots, self.graphs, self.policy, a.prior, a.yields, self.work)
        return more

    def publish(self, published=()):
        """`published`: (slot, time in ns) pairs. Refreshes the views."""
        visible_ns = np.full(len(self.slots), layout.UNSEEN, np.int64)
        for slot, time_ns in published:
            visible_ns[slot] = time_ns
        first, second = [*self.queue, -1, -1][:2]
        self.kernels.publish_lanes(
            *(visible_ns, first, second, self.completed),
            *(self.slots, self.policy, self.frames, self.participants),
        )


def generation_graph(duration_ns, batch=4, depth=3, width=4, estimator=layout.ACCEPTANCE, kind=layout.KIND_SPECULATIVE):
    """A rectangular generation shape's fields."""
    return {
        "kind": kind,
        "batch": batch,
        "depth": depth,
        "width": width,
        "rows": batch * width,
        "lane_width": min(depth + 1, width),
        "capacity_index": -1,
        "estimator": estimator,
        "usable": 1,
        "duration_ns": duration_ns,
    }


def same_bits(ours, theirs):
    """Whether two float arrays agree in every bit."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return a.shape == b.shape and bool((a.view(np.int64) == b.view(np.int64)).all())
