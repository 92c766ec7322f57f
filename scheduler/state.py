"""The whole state of the fast scheduler: arrays for the kernels, and beside them what arrays cannot hold.

Kernels read and write the record arrays (scheduler/layout.py). Python keeps, per slot, the request and its prompt's
stops, and the frames in flight with their plans. The methods are the kernels' calls and the few changes that several
parts need.
"""

from __future__ import annotations

import dataclasses
import heapq
import types
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler import layout
from scheduler.acceptance import Acceptance
from scheduler.admission import Capabilities
from scheduler.capacity import Selection
from scheduler.catalog import Catalog
from scheduler.checks import whole
from scheduler.frames import Frame
from scheduler.ledgers import Ledgers
from scheduler.policy import NEWCOMER_MEMORIES, PolicyConfig
from scheduler.prompts import Prompt
from scheduler.records import RequestHandle, RequestSpec

Records = npt.NDArray[np.void]

_EMPTY_SLOT = np.zeros((), layout.SLOT)

_COEFFICIENTS = (
    "output_token_value",
    "token_fairness",
    "delivery_fairness",
    "decode_age_price",
    "terminal_value",
    "terminal_age_price",
    "adaptation_ms",
    "prompt_wait_price",
    "prompt_rank_age_ms",
    "decode_gap_weight",
    "decode_late_price",
    "token_budget",
)


@dataclasses.dataclass(slots=True)
class Resources:
    """What the host said is free. `page_tokens`: tokens per page; 0 before set_resources: pages without end."""

    free_pages: int = layout.UNBOUNDED
    free_snapshot_rows: int = 0
    page_tokens: int = 0


@dataclasses.dataclass(slots=True)
class Tenant:
    """Who holds a slot. `prompt`: its stops and image windows; `finished`: it ended normally and is in TERMINAL."""

    handle: RequestHandle
    spec: RequestSpec
    prompt: Prompt
    finished: bool = False


class SchedulerState:
    """Arrays of S slots, G shapes (catalog order), D draft depths, C distinct prompt capacities.

    slots: layout.SLOT [S]; graphs: layout.GRAPH [G] (the catalog's own); policy_row: layout.POLICY [1];
    frames: layout.FRAME [3]; lanes: layout.LANE [3, S]; participants: layout.PARTICIPANT [3, S]; works: int64 [S, C],
    the prompt tokens that each slot could consume next on each capacity.
    columns: the fields of `slots` by name. Python reads and writes these: slots[i][name] takes thirty times as long.
    queue: the frames in flight, oldest first; completed: record number of the last completed frame, -1 without;
    completed_fence: its fence; served: generation by slot of its lanes. acceptance: estimates and what derives from
    them (S3).
    visible_ns: int64 [S], when output of that frame became visible and refresh() has not applied it yet, else UNSEEN;
    visible: the same memory, which Python writes faster.
    tenants: who holds each slot; never changed in place, since plans keep the list that they were made with.
    done: int64 [2, S], what the completion's kernel says of each lane (layout.DONE_*), until the next one.
    views_stale: the slots' view_* fields are behind what has happened since refresh().
    """

    def __init__(
        self,
        catalog: Catalog,
        policy: PolicyConfig,
        request_slots: int,
        selection: Selection,
        can: Capabilities,
        kernels: types.ModuleType,
    ) -> None:
        self.catalog, self.request_slots, self.fixed_width, self.can = (
            catalog,
            request_slots,
            selection.fixed_width,
            can,
        )
        self.kernels = kernels
        self.capacities = catalog.capacities
        self.draft_capacity = max(1, *(shape.draft_depth for shape in catalog.shapes))
        self.slots: Records = layout.zeros(layout.SLOT, request_slots)
        self.columns: dict[str, npt.NDArray[Any]] = {name: self.slots[name] for name in layout.SLOT.names or ()}
        self.graphs: Records = catalog.graphs
        self.graphs["usable"] = selection.usable
        self.policy_row: Records = layout.zeros(layout.POLICY, 1)
        self.frames: Records = layout.zeros(layout.FRAME, layout.FRAMES)
        per_frame = (layout.FRAMES, request_slots)
        self.lanes: Records = np.zeros(per_frame, layout.LANE)
        self.participants: Records = np.zeros(per_frame, layout.PARTICIPANT)
        self.works: npt.NDArray[np.int64] = np.zeros((request_slots, max(1, len(self.capacities))), np.int64)
        self.acceptance = Acceptance(request_slots, self.draft_capacity)
        self.ledgers = Ledgers()
        self.tenants: list[Tenant | None] = [None] * request_slots
        self.free_slots = list(range(request_slots))  # a heap: the lowest is taken first
        self.slot_of: dict[str, int] = {}
        self.unpublished_snapshots: dict[str, None] = {}
        self.queue: list[Frame] = []
        self.completed, self.completed_fence = -1, 0
        self.served: dict[int, int] = {}
        self.resources = Resources()
        self.visible_ns: npt.NDArray[np.int64] = np.full(request_slots, layout.UNSEEN, np.int64)
        self.visible = self.visible_ns.data
        self.done: npt.NDArray[np.int64] = np.zeros((2, request_slots), np.int64)
        self.views_stale = False
        self.now_ns = self.last_fence = self.tick = self.admissions = 0
        self.checkpoint_fraction = 0.0
        self.set_policy(policy)

    def set_policy(self, policy: PolicyConfig) -> None:
        """Writes the coefficients where kernels read them. What derives from alpha is the caller's to rebuild."""
        self.policy = policy
        self.catalog.ttl_ns = policy.estimate_ttl_ns
        row = self.policy_row[0]
        for name in _COEFFICIENTS:
            row[name] = getattr(policy, name)
        row["alpha"] = policy.adaptive_verification_alpha
        row["ttl_ns"] = policy.estimate_ttl_ns
        row["deterministic"] = int(policy.prefill_chunking == "deterministic")
        row["fixed_width"] = self.fixed_width
        row["cadence"] = int(policy.decode_cadence == "on")
        row["pooled"] = int(policy.acceptance_model == "pooled")
        row["newcomer"] = NEWCOMER_MEMORIES.index(policy.newcomer_memory)

    @property
    def start_ns(self) -> int:
        """When a graph planned now would start: now, or the expected end of the last frame in flight."""
        return max(self.now_ns, self.queue[-1].expected_end_ns) if self.queue else self.now_ns

    def tenant(self, handle: RequestHandle) -> Tenant | None:
        """Who the handle names, or None when it has ended, or is no handle."""
        if not isinstance(handle, RequestHandle) or not whole(handle.slot, 0, self.request_slots - 1):
            return None
        tenant = self.tenants[handle.slot]
        return tenant if tenant is not None and tenant.handle.generation == handle.generation else None

    def occupy(self, spec: RequestSpec, prompt: Prompt, stage: int) -> Tenant:
        """Puts a request into the lowest free slot under a new generation, its record otherwise 0."""
        number = heapq.heappop(self.free_slots)
        columns = self.columns
        generation = int(columns["generation"][number]) + 1
        self.slots[number] = _EMPTY_SLOT
        columns["generation"][number] = generation
        columns["stage"][number] = stage
        tenant = Tenant(RequestHandle(number, generation), spec, prompt)
        self._let(number, tenant)
        self.slot_of[spec.request_id] = number
        return tenant

    def release(self, number: int) -> None:
        """Frees a slot that no frame uses."""
        tenant = self.tenants[number]
        assert tenant is not None
        assert self.columns["in_flight"][number] == 0
        self.columns["stage"][number] = layout.FREE
        self.works[number] = 0
        self._let(number, None)
        del self.slot_of[tenant.spec.request_id]
        heapq.heappush(self.free_slots, number)

    def _let(self, number: int, tenant: Tenant | None) -> None:
        """Says who holds a slot."""
        tenants = self.tenants.copy()
        tenants[number] = tenant
        self.tenants = tenants

    def free_frame(self) -> int:
        """The number of a frame record that is neither in flight (one frame at most is) nor open for publications."""
        running = self.queue[0].number if self.queue else -1
        number = 0
        while number in (running, self.completed):
            number += 1
        return number

    def restop(self, number: int) -> None:
        """Recomputes a slot's next stop and prompt works after its `consumed` or its window has changed."""
        tenant = self.tenants[number]
        assert tenant is not None
        consumed = int(self.columns["consumed"][number])
        end = tenant.prompt.segment_end(consumed)
        self.columns["segment_end"][number] = end
        if self.capacities:
            self.works[number] = tenant.prompt.works(consumed, end, self.capacities)

    def start_slot(self, number: int) -> None:
        """A filled slot's estimates, first token memory and view."""
        a = self.acceptance
        self.kernels.admit_slot(
            *(number, self.slots, self.graphs, self.policy_row),
            *(a.estimates, a.prior, a.pool, a.survival, a.yields, self.works),
        )

    def rebuild_acceptance(self, first: int, end: int) -> None:
        """Derived tables of slots first..end-1, after a change of alpha or of a slot's source."""
        a = self.acceptance
        self.kernels.rebuild_acceptance(first, end, self.slots, self.policy_row, a.estimates, a.survival, a.yields)

    def start_memories(self) -> None:
        """First token memories of runnable slots that have none yet; tried again after each completion (S9)."""
        a = self.acceptance
        self.kernels.start_memories(self.slots, self.graphs, self.policy_row, a.prior, a.yields, self.works)

    def refresh(self) -> None:
        """Applies noted publications, then projects every slot over the queue (S10), if anything has changed.

        Called before whatever reads the slots' memories or views, and before a change of policy.
        """
        if not self.views_stale:
            return
        queue = self.queue
        self.kernels.publish_lanes(
            self.visible_ns,
            queue[0].number if queue else -1,
            queue[1].number if len(queue) > 1 else -1,
            self.completed,
            self.slots,
            self.policy_row,
            self.frames,
            self.participants,
        )
        self.views_stale = False
