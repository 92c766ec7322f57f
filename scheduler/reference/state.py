"""The reference scheduler's state, and what may be asked of it."""

from __future__ import annotations

from scheduler.errors import InvalidRequest, StalePlan, UnknownHandle
from scheduler.plans import ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import RequestHandle
from scheduler.reference.accounting import start_token_memory
from scheduler.reference.catalog import ReferenceCatalog
from scheduler.reference.decision import CandidateTuple, Graph, Outcome
from scheduler.reference.estimates import Estimates, Pool, Prior
from scheduler.reference.frames import CompletedFrame, Frame
from scheduler.reference.ledgers import Ledgers
from scheduler.reference.loading import fixed_width, usable_shapes
from scheduler.reference.rates import Rates
from scheduler.reference.residents import Resident

MAX_REQUEST_SLOTS = 4096


class ReferenceState:
    """Slots, frames, ledgers, prior, pool and clock."""

    def __init__(
        self,
        catalog: ReferenceCatalog,
        policy: PolicyConfig,
        request_slots: int = 64,
        checkpoint_extra_work_fraction: float = 0.05,
        verification: str = "adaptive",
        image_feature_rows: int = 0,
        completion_token_capacity: int = 8,
    ) -> None:
        if not 1 <= request_slots <= MAX_REQUEST_SLOTS:
            raise InvalidRequest(f"request_slots is {request_slots}; it must be from 1 to {MAX_REQUEST_SLOTS}")
        self.fixed_width = fixed_width(verification)
        catalog.usable = usable_shapes(catalog.shapes, self.fixed_width, completion_token_capacity)
        self.catalog = catalog
        self.request_slots = request_slots
        self.draft_capacity = max(1, *(shape.draft_depth for shape in catalog.shapes))
        self.policy = policy
        catalog.ttl_ns = policy.estimate_ttl_ns
        self.fraction = checkpoint_extra_work_fraction
        self.image_feature_rows = image_feature_rows
        self.now_ns = 0
        self.tick = 0
        self.slots: list[Resident | None] = [None] * request_slots
        self.generations = [0] * request_slots
        self.prior = Prior(self.draft_capacity)
        self.pool = Pool()
        self.ledgers = Ledgers()
        self.queue: list[Frame] = []
        self.completed: CompletedFrame | None = None
        self.unpublished_snapshots: set[str] = set()
        self.free_pages: int | None = None
        self.free_snapshot_rows = 0
        self.page_tokens = 1
        self._admissions = 0
        self._last_fence = 0
        self._outcome = Outcome(None, ())

    # What the engine and the tests ask for.

    @property
    def resident_count(self) -> int:
        """Occupied request slots."""
        return len(self.residents())

    @property
    def in_flight(self) -> ScheduledPlan | None:
        """The oldest committed plan that has not completed."""
        return self.queue[0].plan if self.queue else None

    @property
    def in_flight_frames(self) -> int:
        """Frames in flight."""
        return len(self.queue)

    def is_resident(self, handle: RequestHandle) -> bool:
        """Whether the handle's request still occupies its slot."""
        return self._get(handle) is not None

    def handle_of(self, request_id: str) -> RequestHandle:
        """The request's current handle; raises UnknownHandle when it is not resident."""
        resident = next((r for r in self.residents() if r.spec.request_id == request_id), None)
        if resident is None:
            raise UnknownHandle(f"request {request_id} is not resident")
        return resident.handle

    def residents(self) -> list[Resident]:
        """Occupied slots, in slot order."""
        return [r for r in self.slots if r is not None]

    def runnable(self) -> list[Resident]:
        """Residents that are not cancelled and not waiting, in slot order."""
        return [r for r in self.residents() if r.runnable]

    def graphs(self) -> tuple[Graph, ...]:
        """The catalog as it is known now."""
        return self.catalog.graphs(self.now_ns)

    def all_candidates(self) -> tuple[CandidateTuple, ...]:
        """Every candidate of the last plan(), in catalog order."""
        return self._outcome.candidates

    # Slots.

    def _fresh_estimates(self) -> Estimates:
        pooled = self.policy.acceptance_model == "pooled"
        return Estimates(self.prior, self.policy.adaptive_verification_alpha, self.pool if pooled else None)

    def _get(self, handle: RequestHandle) -> Resident | None:
        resident = self.slots[handle.slot] if 0 <= handle.slot < self.request_slots else None
        return resident if resident is not None and resident.handle == handle else None

    def _resident(self, handle: RequestHandle) -> Resident:
        resident = self._get(handle)
        if resident is None or resident.cancelled:
            raise UnknownHandle(f"slot {handle.slot}, generation {handle.generation} holds no running request")
        return resident

    def _current(self, handle: RequestHandle, epoch: int) -> Resident:
        resident = self._get(handle)
        if resident is None or resident.epoch != epoch:
            raise StalePlan(f"slot {handle.slot} has changed since the plan was made; plan again")
        return resident

    def _free_if_done(self, resident: Resident) -> None:
        """Frees the slot of a cancelled request that no frame holds."""
        if not resident.cancelled or resident.in_flight:
            return
        self.slots[resident.slot] = None

    def _start_missing_memories(self) -> None:
        runnable = self.runnable()
        missing = [r for r in runnable if r.token_memory is None]
        rates = Rates(self.graphs(), self.prior) if missing else None
        for resident in missing:
            assert rates is not None
            start_token_memory(resident, [r for r in runnable if r is not resident], rates, self.policy)

    def _idle(self) -> None:
        if not self.queue and all(r.cancelled for r in self.residents()):
            self.ledgers.idle()
