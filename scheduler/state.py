"""The whole state of the fast scheduler: arrays for the kernels, and beside them what arrays cannot hold.

Kernels read and write the record arrays (scheduler/layout.py). Python keeps, per slot, the request and its prompt's
stops, and the plans of the frames in flight.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from scheduler import layout
from scheduler.acceptance import Acceptance
from scheduler.catalog import Catalog
from scheduler.ledgers import Ledgers
from scheduler.plans import ScheduledPlan
from scheduler.policy import NEWCOMER_MEMORIES, PolicyConfig
from scheduler.prompts import Prompt
from scheduler.records import RequestHandle, RequestSpec

Records = npt.NDArray[np.void]


@dataclasses.dataclass(slots=True)
class Resources:
    """What the host said is free. `page_tokens`: tokens per page; 0 before set_resources: pages without end."""

    free_pages: int = layout.UNBOUNDED
    free_snapshot_rows: int = 0
    page_tokens: int = 0


@dataclasses.dataclass(slots=True)
class Tenant:
    """Who holds a slot. `prompt` is its stops and image windows; `finished`: it ended normally (in TERMINAL)."""

    handle: RequestHandle
    spec: RequestSpec
    prompt: Prompt
    finished: bool = False


class SchedulerState:
    """Arrays of S slots, G shapes (catalog order), D draft depths.

    slots: layout.SLOT [S]; graphs: layout.GRAPH [G] (the catalog's own); policy_row: layout.POLICY [1];
    frames: layout.FRAME [3]; lanes: layout.LANE [3, S]; participants: layout.PARTICIPANT [3, S].
    queue: indices of the frames in flight, oldest first; completed: index of the last completed frame, -1 without.
    frame_plans: the plan of each frame record.
    acceptance: estimates, prior, survival, yields (S3).
    """

    def __init__(self, catalog: Catalog, policy: PolicyConfig, request_slots: int, fixed_width: int) -> None:
        self.catalog = catalog
        self.policy = policy
        self.request_slots = request_slots
        self.draft_capacity = max(1, *(shape.draft_depth for shape in catalog.shapes))
        self.slots: Records = layout.zeros(layout.SLOT, request_slots)
        self.graphs: Records = catalog.graphs
        self.policy_row: Records = layout.zeros(layout.POLICY, 1)
        self.frames: Records = layout.zeros(layout.FRAME, layout.FRAMES)
        self.lanes: Records = layout.zeros(layout.LANE, layout.FRAMES * request_slots).reshape(layout.FRAMES, -1)
        self.participants: Records = layout.zeros(layout.PARTICIPANT, layout.FRAMES * request_slots).reshape(
            layout.FRAMES, -1
        )
        self.acceptance = Acceptance(request_slots, self.draft_capacity)
        self.ledgers = Ledgers()
        self.tenants: list[Tenant | None] = [None] * request_slots
        self.slot_of: dict[str, int] = {}
        self.unpublished_snapshots: dict[str, None] = {}
        self.queue: list[int] = []
        self.completed = -1
        self.frame_plans: list[ScheduledPlan | None] = [None] * layout.FRAMES
        self.resources = Resources()
        self.now_ns = 0
        self.last_fence = 0
        self.tick = 0
        self.admissions = 0
        self.fixed_width = fixed_width
        self.set_policy(policy)

    def set_policy(self, policy: PolicyConfig) -> None:
        """Writes the coefficients where kernels read them; derived acceptance tables are the caller's to rebuild."""
        self.policy = policy
        self.catalog.ttl_ns = policy.estimate_ttl_ns
        row = self.policy_row[0]
        for name in (
            "output_token_value",
            "token_fairness",
            "delivery_fairness",
            "decode_age_price",
            "terminal_value",
            "terminal_age_price",
            "adaptation_ms",
        ):
            row[name] = getattr(policy, name)
        row["alpha"] = policy.adaptive_verification_alpha
        row["ttl_ns"] = policy.estimate_ttl_ns
        row["deterministic"] = int(policy.prefill_chunking == "deterministic")
        row["fixed_width"] = self.fixed_width
        row["newcomer"] = NEWCOMER_MEMORIES.index(policy.newcomer_memory)
        row["newcomer"] = NEWCOMER_MEMORIES.index(policy.newcomer_memory)

    def tenant(self, handle: RequestHandle) -> Tenant | None:
        """Who the handle names, or None when it has ended."""
        if not 0 <= handle.slot < self.request_slots:
            return None
        tenant = self.tenants[handle.slot]
        return tenant if tenant is not None and tenant.handle.generation == handle.generation else None
