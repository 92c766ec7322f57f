"""A whole device: every kind of program prepared, run through the frames that a worker submits, two of them queued."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from gpu import create_device
from gpu.capacity import MixedSizes
from gpu.device import Device, Frame, FrameLane, FrameResult
from gpu.selfcheck.host import GREEDY
from gpu.selfcheck.models import Subject
from gpu.selfcheck.outcome import CheckFailed
from scheduler.shapes import GraphKind, GraphShape

_DEADLINE_S = 60.0
_PROMPT = [5, 9, 13, 9, 13, 9, 70, 80, 90, 13, 9, 13, 1, 2, 3, 4, 5, 6, 7, 8]


def every_kind(subject: Subject, device_name: str) -> str:
    """Prepare a catalog with all kinds and run each of its programs once; those that may queue run in pairs."""
    device = create_device(
        subject.path,
        device=device_name,
        prefill_capacities=(16, 64),
        scored_capacities=(64,),
        decode_batches=(1, 4),
        request_slots=4,
        max_context=256,
        kv_pages=80,
        draft_head=subject.head,
        draft_tokens=3,
        speculative_token_capacity=16,
        allocation="host" if subject.head is None else "device",
        mixed=True,
        mixed_sizes=MixedSizes(prompt_rows=2),
        snapshot_rows=4,
    )
    try:
        began = time.monotonic()
        device.prepare(lambda _what, _share: None)
        prepared_s = time.monotonic() - began
        frames = FrameDriver(device)
        _run_all(frames)
        missing = {shape.kind for shape in device.shapes} - frames.kinds
        if missing:
            raise CheckFailed(f"no program ran of the kinds {', '.join(sorted(kind.value for kind in missing))}")
        verb = "captured" if device_name == "cuda" else "warmed up"
        return (
            f"{len(device.shapes)} programs of {len(frames.kinds)} kinds {verb} in {prepared_s:.1f} s, "
            f"{frames.count} frames run"
        )
    finally:
        device.shut_down(abandon=False)


class FrameDriver:
    """Submits frames and waits for their results, as a worker does. `kinds`: those that have run."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.kinds: set[GraphKind] = set()
        self.count = 0

    def submit(self, shape: GraphShape, lanes: Sequence[FrameLane]) -> None:
        """Queue a frame."""
        self.count += 1
        self.kinds.add(shape.kind)
        self.device.submit(Frame(self.count, shape, tuple(lanes)))

    def wait(self) -> FrameResult:
        """The oldest frame's result. Raises CheckFailed when it failed or does not come."""
        ready, _, _ = select.select([self.device.completion_fd], [], [], _DEADLINE_S)
        result = self.device.collect() if ready else None
        if result is None:
            raise CheckFailed(f"no result of frame {self.count} within {_DEADLINE_S:.0f} s")
        errors = [result.error, *(lane.error for lane in result.lanes)]
        if any(error is not None for error in errors):
            raise CheckFailed(f"frame {result.fence} failed: {next(error for error in errors if error)}")
        return result

    def run(self, shape: GraphShape, *lanes: FrameLane) -> FrameResult:
        """One frame, start to end."""
        self.submit(shape, lanes)
        return self.wait()

    def shape(self, kind: GraphKind, lanes: int = 1) -> GraphShape:
        """The largest prepared shape of a kind with room for so many lanes."""
        return max(
            (shape for shape in self.device.shapes if shape.kind is kind and shape.batch_capacity >= lanes),
            key=lambda shape: (shape.draft_depth, shape.prefill_capacity),
        )

    def open(self, slot: int, prompt: list[int]) -> int:
        """Open a request from a cached state if there is one; returns its tokens."""
        cached = self.device.match_prefix(prompt)
        self.device.open_request(slot, prompt, 100, GREEDY, cached_tokens=cached)
        self.run(self.shape(GraphKind.RESTORE if cached else GraphKind.INIT), FrameLane(slot, 1))
        return cached


def _run_all(frames: FrameDriver) -> None:
    prefills = [shape for shape in frames.device.shapes if shape.kind is GraphKind.PREFILL]
    for slot in (0, 1):
        frames.open(slot, [slot, *_PROMPT])
        frames.run(prefills[0], FrameLane(slot, 10))
        frames.run(prefills[-1], FrameLane(slot, len(_PROMPT) - 9))
        if slot == 0:
            frames.run(frames.shape(GraphKind.SNAPSHOT), FrameLane(0, 1))
    frames.open(2, _PROMPT)
    frames.run(frames.shape(GraphKind.SCORED_PREFILL), FrameLane(2, len(_PROMPT)))
    frames.device.close_request(2)
    for slot in (2, 3):
        frames.open(slot, [slot, *_PROMPT])
    prompts = FrameLane(3, 21), FrameLane(2, 21)
    frames.run(frames.shape(GraphKind.MIXED, 4), FrameLane(0, 1), prompts[0], FrameLane(1, 1), prompts[1])
    for shape in frames.device.shapes:
        if shape.kind is GraphKind.SPECULATIVE:
            _run_pair(frames, shape)
    frames.run(frames.shape(GraphKind.TERMINAL_SNAPSHOT), FrameLane(2, 1))
    frames.device.close_request(2)
    if frames.open(2, [0, *_PROMPT, 1]) != len(_PROMPT) + 1:
        raise CheckFailed("the cached state of a prompt was not found again")
    frames.run(prefills[0], FrameLane(2, 1))


def _run_pair(frames: FrameDriver, shape: GraphShape) -> None:
    """Two frames in flight, the second queued behind the first."""
    slots = range(shape.batch_capacity)
    rows = max(1, min(shape.lane_width, shape.target_rows // shape.batch_capacity))
    if not frames.device.limits.learned_drafts:
        rows = 1
    for _ in range(2):
        frames.submit(shape, [FrameLane(slot, rows) for slot in slots])
    for _ in range(2):
        frames.wait()
