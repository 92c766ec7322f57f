"""A baseline as a Batcher: residents in order of admission, a rule that fills each step, one frame in flight."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler.errors import InvalidFence, InvalidRequest, SlotsFull, StalePlan
from scheduler.plans import Reason
from scheduler.records import CompletionRecord, ExecutionTiming, RequestHandle, RequestSpec
from scheduler.shapes import GraphShape
from scheduler.simulation.baselines.rules import Resident, Rule
from scheduler.simulation.baselines.steps import StepGraphs


@dataclasses.dataclass(frozen=True, slots=True)
class BaselineLane:
    """A BatchLane: one resident's share of a step."""

    handle: RequestHandle
    request_id: str
    prompt_tokens: int
    query_length: int
    ceiling: int


@dataclasses.dataclass(frozen=True, slots=True)
class BaselineStep:
    """A BatchPlan. `decoders` lanes generate, the others consume `prompt_tokens` together."""

    shape: GraphShape
    lanes: tuple[BaselineLane, ...]
    decoders: int
    prompt_tokens: int
    reason: Reason = Reason.ORDINARY


class BaselineBatcher:
    """Serves whoever the rule names. It admits in the order in which it is asked, while a slot is free.

    Like the scheduler it keeps no clock; unlike it, it never queues a second frame: each rule needs the completion of
    the step before.
    """

    def __init__(self, rule: Rule, graphs: StepGraphs, request_slots: int = 64) -> None:
        if request_slots < 1:
            raise InvalidRequest(f"request_slots is {request_slots}; it must be at least 1")
        self._rule = rule
        self._graphs = graphs
        self._free = list(range(request_slots - 1, -1, -1))
        self._generations = [0] * request_slots
        self._prompts: dict[RequestHandle, Resident] = {}
        self._decoders: dict[RequestHandle, Resident] = {}
        self._single_lanes: dict[int, BaselineLane] = {}
        self._submitted: tuple[int, BaselineStep] | None = None

    def advance_to(self, now_ns: int) -> None:
        """The rules look at no clock."""

    def admit(self, spec: RequestSpec) -> RequestHandle:
        """Takes a request in; raises SlotsFull."""
        if not self._free:
            raise SlotsFull(f"all {len(self._generations)} request slots are taken")
        slot = self._free.pop()
        self._generations[slot] += 1
        handle = RequestHandle(slot, self._generations[slot])
        output_left = min(spec.max_output_tokens, spec.context_capacity - spec.prompt_tokens)
        resident = Resident(handle, spec.request_id, spec.prompt_tokens - spec.cached_tokens, output_left)
        self._prompts[handle] = resident
        self._single_lanes[slot] = _decode_lane(resident, 1)
        return handle

    def plan(self) -> BaselineStep | None:
        """The next step by the rule, or None while one is in flight or nobody is resident."""
        if self._submitted is not None:
            return None
        decoders = prompt_tokens = 0
        lanes: list[BaselineLane] = []
        single = self._single_lanes
        for resident, rows in self._rule(list(self._decoders.values()), list(self._prompts.values())):
            if resident.prompt_left:
                prompt_tokens += rows
                lanes.append(
                    BaselineLane(resident.handle, resident.request_id, rows, rows, rows == resident.prompt_left)
                )
            else:
                decoders += 1
                lanes.append(single[resident.handle.slot] if rows == 1 else _decode_lane(resident, rows))
        if not lanes:
            return None
        return BaselineStep(self._graphs.counted_shape(decoders, prompt_tokens), tuple(lanes), decoders, prompt_tokens)

    def commit(self, plan: BaselineStep, fence: int) -> None:
        """Submits the step; raises StalePlan while another is in flight."""
        if self._submitted is not None:
            raise StalePlan(f"frame {self._submitted[0]} is in flight; plan again when it has completed")
        self._submitted = (fence, plan)

    def complete(
        self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> tuple[CompletionRecord, ...]:
        """Applies what each lane did; raises InvalidFence for a fence that is not in flight."""
        if self._submitted is None or self._submitted[0] != fence:
            raise InvalidFence(f"fence {fence} is not in flight")
        self._submitted = None
        for record in records:
            self._apply(record)
        return ()

    def published_output(self, handle: RequestHandle, fence: int) -> None:
        """The rules look at no publication."""

    def cancel(self, handle: RequestHandle) -> None:
        """The request is served no more and its slot is free."""
        self._forget(handle)

    def _apply(self, record: CompletionRecord) -> None:
        handle = record.handle
        resident = self._prompts.get(handle)
        if resident is not None:
            resident.prompt_left -= record.consumed_prompt_tokens
            if resident.prompt_left == 0:
                self._decoders[handle] = self._prompts.pop(handle)
        else:
            resident = self._decoders[handle]
        resident.output_left -= len(record.emitted_tokens)
        if record.finished is not None or resident.output_left == 0:
            self._forget(handle)

    def _forget(self, handle: RequestHandle) -> None:
        (self._decoders if handle in self._decoders else self._prompts).pop(handle)
        self._free.append(handle.slot)


def _decode_lane(resident: Resident, rows: int) -> BaselineLane:
    return BaselineLane(resident.handle, resident.request_id, 0, rows, rows)
