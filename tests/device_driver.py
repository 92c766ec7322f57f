"""Runs frames on a device the way a worker loop does."""

from __future__ import annotations

import select

from gpu.device import Frame, FrameLane, FrameResult, SamplingParameters
from scheduler.shapes import Allocation, GraphKind, GraphShape

GREEDY = SamplingParameters(temperature=0.0)


def prefill(capacity: int, scored: bool = False) -> GraphShape:
    """A prefill shape."""
    return GraphShape(GraphKind.SCORED_PREFILL if scored else GraphKind.PREFILL, 1, prefill_capacity=capacity)


def decode(batch: int) -> GraphShape:
    """A decode shape."""
    return GraphShape(GraphKind.DECODE, batch)


def round_of(batch: int, depth: int, rows: int = 0, allocation: Allocation = Allocation.NONE) -> GraphShape:
    """A speculative shape of width depth + 1; `rows` 0: rectangular."""
    return GraphShape(
        GraphKind.SPECULATIVE,
        batch,
        draft_depth=depth,
        target_width=depth + 1,
        target_rows=rows,
        speculation_enabled=True,
        allocation=allocation,
    )


def state_graph(kind: GraphKind, batch: int = 1) -> GraphShape:
    """An init, restore, snapshot or terminal snapshot shape."""
    return GraphShape(kind, batch)


class DeviceDriver:
    """Submits frames and waits for them on the completion descriptor."""

    def __init__(self, device) -> None:
        self.device = device
        self._fence = 0
        self._kinds = {shape.kind for shape in device.shapes}

    def submit(self, shape: GraphShape, *lanes: tuple) -> int:
        """Queue a frame over (slot, query_length[, copies]) lanes."""
        self._fence += 1
        self.device.submit(Frame(self._fence, shape, tuple(FrameLane(*lane) for lane in lanes)))
        return self._fence

    def wait(self) -> FrameResult:
        """The oldest frame's result."""
        ready, _, _ = select.select([self.device.completion_fd], [], [], 60)
        assert ready, "no frame finished within a minute"
        result = self.device.collect()
        assert result is not None
        return result

    def run(self, shape: GraphShape, *lanes: tuple) -> FrameResult:
        """One frame, start to end; fails the test when the frame failed."""
        fence = self.submit(shape, *lanes)
        result = self.wait()
        assert (result.fence, result.error) == (fence, None)
        return result

    def open(self, slot: int, prompt: list[int], outputs: int = 32, sampling=GREEDY, reuse=False, **options) -> int:
        """Open a request and set its slot up; returns the cached tokens that it starts from (0 unless `reuse`)."""
        cached = self.device.match_prefix(prompt) if reuse else 0
        self.device.open_request(slot, prompt, outputs, sampling, cached_tokens=cached, **options)
        kind = GraphKind.RESTORE if cached else GraphKind.INIT
        if kind in self._kinds:
            self.run(state_graph(kind), (slot, 1))
        return cached

    def read(self, slot: int, count: int, capacity: int = 64) -> tuple[int, ...]:
        """Prefill `count` prompt tokens in chunks; returns what was emitted last."""
        emitted = ()
        while count:
            chunk = min(count, capacity)
            emitted = self.run(prefill(capacity), (slot, chunk)).lanes[0].emitted_tokens
            count -= chunk
        return emitted

    def start(self, slot: int, prompt: list[int], outputs: int = 32, sampling=GREEDY, capacity=64, **options) -> int:
        """Open a request, prefill it in chunks and return its first token."""
        cached = self.open(slot, prompt, outputs, sampling, **options)
        return self.read(slot, len(prompt) - cached, capacity)[0]

    def step(self, batch: int, *slots: int) -> list[int]:
        """Decode one token for each slot."""
        shape = decode(batch) if GraphKind.DECODE in self._kinds else round_of(batch, 0)
        result = self.run(shape, *((slot, 1) for slot in slots))
        return [lane.emitted_tokens[0] for lane in result.lanes]

    def capture(self, slot: int, kind: GraphKind = GraphKind.SNAPSHOT) -> None:
        """Run a snapshot of the slot."""
        self.run(state_graph(kind), (slot, 1))

    def retire(self, slot: int) -> None:
        """A terminal snapshot, and close."""
        self.capture(slot, GraphKind.TERMINAL_SNAPSHOT)
        self.device.close_request(slot)

    def generate(self, slot: int, prompt: list[int], count: int, **options) -> list[int]:
        """`count` tokens of a request that runs alone, then close it."""
        tokens = [self.start(slot, prompt, count, **options)]
        while len(tokens) < count:
            tokens += self.step(1, slot)
        self.device.close_request(slot)
        return tokens
