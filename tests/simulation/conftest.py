"""A batcher that follows a simple rule and checks how it is called, and durations that are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from scheduler.errors import SlotsFull
from scheduler.plans import Reason
from scheduler.records import CompletionRecord, ExecutionTiming, RequestHandle, RequestSpec
from scheduler.shapes import GraphKind, GraphShape

PREFILL = GraphShape(GraphKind.PREFILL, 1, prefill_capacity=64)
DECODE = GraphShape(GraphKind.DECODE, 4)


@dataclasses.dataclass(frozen=True)
class Lane:
    handle: RequestHandle
    request_id: str
    prompt_tokens: int = 0
    query_length: int = 1
    ceiling: int = 1


@dataclasses.dataclass(frozen=True)
class Plan:
    shape: GraphShape
    lanes: tuple[Lane, ...]
    reason: Reason = Reason.ORDINARY


class PromptsThenDecoders:
    """Whole prompts one by one, else every decoder once; decode steps are queued two deep when `queues`.

    `calls` is the protocol as the machine used it; what the protocol forbids fails at once.
    """

    def __init__(self, slots: int = 4, decode: GraphShape = DECODE, queues: bool = False) -> None:
        self.decode = decode
        self.queues = queues
        self.free = list(range(slots))
        self.prompts: list[tuple[RequestHandle, RequestSpec]] = []
        self.decoders: dict[str, RequestHandle] = {}
        self.in_flight: list[tuple[int, Plan]] = []
        self.timings: list[ExecutionTiming] = []
        self.records: list[Sequence[CompletionRecord]] = []
        self.specs: list[RequestSpec] = []
        self.unpublished: set[RequestHandle] = set()
        self.published: list[tuple[int, int, int]] = []
        self.cancelled: list[int] = []
        self.now_ns = 0

    def advance_to(self, now_ns: int) -> None:
        assert now_ns >= self.now_ns
        self.now_ns = now_ns

    def admit(self, spec: RequestSpec) -> RequestHandle:
        if not self.free:
            raise SlotsFull("full")
        handle = RequestHandle(self.free.pop(0), len(self.specs))
        self.specs.append(spec)
        self.prompts.append((handle, spec))
        return handle

    def plan(self) -> Plan | None:
        if self.in_flight and not (self.queues and self.in_flight[-1][1].shape is self.decode):
            return None
        if self.prompts:
            if self.in_flight:
                return None
            handle, spec = self.prompts[0]
            return Plan(PREFILL, (Lane(handle, spec.request_id, spec.prompt_tokens - spec.cached_tokens),))
        width = self.decode.target_width
        lanes = [Lane(handle, name, 0, width, width) for name, handle in self.decoders.items()]
        return Plan(self.decode, tuple(lanes)) if lanes else None

    def commit(self, plan: Plan, fence: int) -> None:
        assert len(self.in_flight) < 2
        self.in_flight.append((fence, plan))

    def complete(self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming) -> tuple[()]:
        assert not self.unpublished, "everything is published before the next completion"
        expected, plan = self.in_flight.pop(0)
        assert fence == expected
        assert [record.handle for record in records] == [lane.handle for lane in plan.lanes]
        self.timings.append(timing)
        self.records.append(records)
        for lane, record in zip(plan.lanes, records, strict=True):
            if plan.shape is PREFILL:
                self.prompts.pop(0)
                self.decoders[lane.request_id] = lane.handle
            if lane.request_id not in self.decoders:
                continue
            if record.emitted_tokens:
                self.unpublished.add(lane.handle)
            if record.finished is not None:
                del self.decoders[lane.request_id]
                self.free.append(lane.handle.slot)
        return ()

    def complete_packed_round(self, fence, records, timing, confidence):
        self.confidence = confidence
        return self.complete(fence, records, timing)

    def published_output(self, handle: RequestHandle, fence: int) -> None:
        self.unpublished.remove(handle)
        self.published.append((handle.slot, fence, self.now_ns))

    def cancel(self, handle: RequestHandle) -> None:
        assert handle not in self.unpublished
        assert all(lane.handle != handle for _, plan in self.in_flight for lane in plan.lanes)
        self.cancelled.append(handle.slot)
        self.prompts = [(other, spec) for other, spec in self.prompts if other != handle]
        self.decoders = {name: other for name, other in self.decoders.items() if other != handle}
        self.free.append(handle.slot)


class Given:
    """A DurationSource: ms by graph kind."""

    needs_context = False

    def __init__(self, **by_kind_ms: float) -> None:
        self.by_kind_ms = by_kind_ms

    def duration_ns(self, plan: Plan, context_tokens: float, now_ns: int) -> tuple[int, int]:
        duration_ns = round(self.by_kind_ms[plan.shape.kind.value] * 1e6)
        return duration_ns, duration_ns


@pytest.fixture
def prompts_then_decoders() -> Callable[..., PromptsThenDecoders]:
    return PromptsThenDecoders


@pytest.fixture
def given_ms() -> Callable[..., Given]:
    return Given


@pytest.fixture
def catalog_csv() -> str:
    """Prefill of 2 + C/64 ms, decode of 5 + B/10 ms, chains of 1 and 3 drafts, and mixed graphs."""
    lines = ["kind,B,D,W,P,prefill_capacity,duration_ms"]
    lines += [f"prefill,1,0,0,{c},{c},{2 + c / 64}" for c in (64, 256, 1024)]
    lines += [f"decode,{b},0,1,{b},0,{5 + b / 10}" for b in (1, 2, 4)]
    lines += [f"speculative,{b},{d},{d + 1},{b * (d + 1)},0,{5.2 + b / 10 + d}" for b in (1, 2, 4) for d in (1, 3)]
    lines += [
        f"mixed,{b},{w - 1},{w},{b * w + c},{c},{6 + b * w / 10 + c / 64}"
        for b in (1, 2, 4)
        for w in (1, 4)
        for c in (64, 256)
    ]
    return "\n".join(lines) + "\n"
