"""Resident requests: the state that the scheduler keeps of each (S4, S9)."""

from __future__ import annotations

import dataclasses

from scheduler.records import RequestHandle, RequestSpec


@dataclasses.dataclass(slots=True)
class Resident:
    """One admitted request. Invariants:

    `consumed`: prompt tokens in the cache, from spec.cached_tokens up to spec.prompt_tokens.
    `emitted`: committed output tokens, above 0 only when the prompt is whole, at most `output_limit`.
    `token_memory`, `delivery_memory`: inverse rates in ms per unit; None until something was measured, and for
    deliveries until the first published burst.
    `last_visible_ns`: when output was last published, None before the first.
    `last_served_tick`: commit number of the last plan that served it, 0 before the first.
    `fence`: the submitted frame that uses its state, None when none does.
    `epoch` rises with each change that invalidates a plan made before it.
    `cancelled`: never selected again; the slot is freed when `fence` completes.
    """

    handle: RequestHandle
    spec: RequestSpec
    consumed: int
    emitted: int = 0
    token_memory: float | None = None
    delivery_memory: float | None = None
    last_visible_ns: int | None = None
    last_served_tick: int = 0
    fence: int | None = None
    epoch: int = 0
    cancelled: bool = False

    @property
    def output_limit(self) -> int:
        """Output tokens that the request may ever have."""
        return min(self.spec.max_output_tokens, self.spec.context_capacity - self.spec.prompt_tokens)

    @property
    def remaining_prompt(self) -> int:
        """Prompt tokens still to compute."""
        return self.spec.prompt_tokens - self.consumed

    @property
    def prefilling(self) -> bool:
        """The prompt is not whole yet."""
        return self.consumed < self.spec.prompt_tokens

    @property
    def served(self) -> bool:
        """Some plan has served it."""
        return self.last_served_tick > 0


@dataclasses.dataclass(frozen=True, slots=True)
class ProjectedResident:
    """A resident as one decision sees it: visible output and delivery memory with expected deliveries (S10)."""

    resident: Resident
    last_visible_ns: int | None
    delivery_memory: float | None

    @property
    def active_decoder(self) -> bool:
        """A decoding request with at least one visible output: it has an output age (S4)."""
        return not self.resident.prefilling and self.last_visible_ns is not None


class Slots:
    """The request slots. A slot's generation rises each time it is filled."""

    def __init__(self, count: int) -> None:
        self._residents: list[Resident | None] = [None] * count
        self._generations = [0] * count
        self._slot_of: dict[str, int] = {}

    def __len__(self) -> int:
        """Occupied slots."""
        return len(self._slot_of)

    @property
    def capacity(self) -> int:
        """Slots in all."""
        return len(self._residents)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._slot_of

    def free_slot(self) -> int | None:
        """The lowest free slot, or None."""
        return next((i for i, resident in enumerate(self._residents) if resident is None), None)

    def occupy(self, slot: int, spec: RequestSpec) -> Resident:
        """Puts the request into a free slot under a new generation."""
        assert self._residents[slot] is None
        self._generations[slot] += 1
        resident = Resident(RequestHandle(slot, self._generations[slot]), spec, consumed=spec.cached_tokens)
        self._residents[slot] = resident
        self._slot_of[spec.request_id] = slot
        return resident

    def release(self, resident: Resident) -> None:
        """Frees the slot."""
        assert self._residents[resident.handle.slot] is resident
        self._residents[resident.handle.slot] = None
        del self._slot_of[resident.spec.request_id]

    def get(self, handle: RequestHandle) -> Resident | None:
        """The resident that the handle names, or None when it has ended."""
        if not 0 <= handle.slot < len(self._residents):
            return None
        resident = self._residents[handle.slot]
        return resident if resident is not None and resident.handle == handle else None

    def runnable(self) -> list[Resident]:
        """Residents that may be selected, in slot order."""
        return [r for r in self._residents if r is not None and not r.cancelled]
