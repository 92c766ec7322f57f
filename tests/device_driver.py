"""Runs frames on a device the way a worker loop does, one after the other."""

from __future__ import annotations

import select

from gpu.device import Frame, FrameLane, FrameResult, SamplingParameters
from scheduler.shapes import GraphKind, GraphShape

GREEDY = SamplingParameters(temperature=0.0)


def prefill(capacity: int) -> GraphShape:
    """A prefill shape."""
    return GraphShape(GraphKind.PREFILL, 1, prefill_capacity=capacity)


def decode(batch: int) -> GraphShape:
    """A decode shape."""
    return GraphShape(GraphKind.DECODE, batch)


class DeviceDriver:
    """Submits frames and waits for them on the completion descriptor."""

    def __init__(self, device) -> None:
        self.device = device
        self._fence = 0

    def submit(self, shape: GraphShape, *lanes: tuple[int, int]) -> int:
        """Start a frame over (slot, query_length) lanes."""
        self._fence += 1
        self.device.submit(Frame(self._fence, shape, tuple(FrameLane(*lane) for lane in lanes)))
        return self._fence

    def wait(self) -> FrameResult:
        """The running frame's result."""
        ready, _, _ = select.select([self.device.completion_fd], [], [], 60)
        assert ready, "no frame finished within a minute"
        result = self.device.collect()
        assert result is not None
        return result

    def run(self, shape: GraphShape, *lanes: tuple[int, int]) -> FrameResult:
        """One frame, start to end; fails the test when the frame failed."""
        fence = self.submit(shape, *lanes)
        result = self.wait()
        assert (result.fence, result.error) == (fence, None)
        return result

    def open(self, slot: int, prompt: list[int], outputs: int = 32, sampling: SamplingParameters = GREEDY) -> None:
        """Open a request."""
        self.device.open_request(slot, prompt, outputs, sampling)

    def start(self, slot: int, prompt: list[int], outputs: int = 32, sampling=GREEDY, capacity: int = 64) -> int:
        """Open a request, prefill it in chunks and return its first token."""
        self.open(slot, prompt, outputs, sampling)
        left, emitted = len(prompt), ()
        while left:
            chunk = min(left, capacity)
            emitted = self.run(prefill(capacity), (slot, chunk)).lanes[0].emitted_tokens
            left -= chunk
        return emitted[0]

    def step(self, batch: int, *slots: int) -> list[int]:
        """Decode one token for each slot."""
        result = self.run(decode(batch), *((slot, 1) for slot in slots))
        return [lane.emitted_tokens[0] for lane in result.lanes]

    def generate(self, slot: int, prompt: list[int], count: int, **options) -> list[int]:
        """`count` tokens of a request that runs alone, then close it."""
        tokens = [self.start(slot, prompt, count, **options)]
        while len(tokens) < count:
            tokens += self.step(1, slot)
        self.device.close_request(slot)
        return tokens
