"""A loaded model behind the device protocol, whatever its programs run on: a transport takes frames there and back."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.calibration import ConfidenceCalibration
from gpu.capacity import draft_capacity
from gpu.device import (
    DeviceLimits,
    Frame,
    FrameResult,
    InvalidFrame,
    InvalidRequest,
    LaneResult,
    Progress,
    SamplingParameters,
)
from gpu.frames import SNAPSHOT_KINDS, CheckedLane, DraftLimits, check_frame, check_queue
from gpu.memory import Memory, Snapshot
from gpu.pages import pages_for
from gpu.prefix_cache import usable_tokens
from gpu.programs.create import STATE_KINDS
from gpu.programs.interface import RoundOutput
from gpu.requests import OpenRequest
from gpu.results import confidence_by_slot, lane_result, survival_by_slot
from gpu.sampling.table import bias_by_token
from gpu.snapshots import restore_copy, snapshot_copy
from gpu.state import SlotState
from gpu.transport import Finished, Transport
from scheduler.shapes import GraphKind, GraphShape

Program = TypeVar("Program")


class RequestSampling(Protocol):
    """What programs know of how each request is sampled."""

    def open(
        self, slot: int, parameters: SamplingParameters, prompt_ids: Sequence[int], output_ids: Sequence[int] = ()
    ) -> None:
        """Describe a slot anew; `output_ids`: tokens that the request emitted before, in an earlier life."""

    def close(self, slot: int) -> None:
        """Forget a slot."""


class _Submitted(msgspec.Struct, frozen=True):
    """A frame in flight. `snapshots`: one entry per lane of a snapshot program, None where nothing is captured."""

    frame: Frame
    lanes: tuple[CheckedLane, ...]
    snapshots: tuple[Snapshot | None, ...] = ()


class PreparedDevice(Generic[Program]):
    """Implements gpu.device.Device. The worker thread calls; programs and uploads run where the transport says.

    What the worker decides about the slots' state goes into `_uploads`, which the next frame carries out before its
    program. So no tensor is touched while an earlier program may still read it.
    """

    def __init__(
        self,
        programs: Mapping[GraphShape, Program],
        limits: DeviceLimits,
        state: SlotState,
        sampling: RequestSampling,
        transport: Transport[Program],
        calibrates: bool = True,
    ) -> None:
        """`state` and `sampling` are those that the programs work on. `calibrates`: the draft head's confidence."""
        self._programs = dict(programs)
        self._limits = limits
        self._state = state
        self._sampling = sampling
        kinds = {shape.kind for shape in programs}
        self._grows = not kinds.isdisjoint(STATE_KINDS)
        self._initialises = GraphKind.INIT in kinds
        self._restores = GraphKind.RESTORE in kinds
        self._memory = Memory(limits.kv_pages, limits.snapshot_rows)
        self._drafts = DraftLimits(limits.draft_tokens, limits.learned_drafts)
        self._draft_capacity = draft_capacity(programs)
        self._calibration = ConfidenceCalibration(self._draft_capacity) if calibrates else None
        self._requests: dict[int, OpenRequest] = {}
        self._closing: list[OpenRequest] = []
        self._in_flight: collections.deque[_Submitted] = collections.deque()
        self._uploads: list[Callable[[], None]] = []
        self._busy_ns = 0
        self._transport = transport

    @property
    def shapes(self) -> tuple[GraphShape, ...]:
        """Every prepared program, in catalog order."""
        return tuple(self._programs)

    @property
    def limits(self) -> DeviceLimits:
        """The sizes that admission checks."""
        return self._limits

    @property
    def completion_fd(self) -> int:
        """Readable while a result waits to be collected."""
        return self._transport.completion_fd

    def prepare(self, progress: Progress) -> None:
        """Make every program ready to run. Waits; raises DeviceError when one fails."""
        self._transport.prepare(self._programs, progress)

    def match_prefix(self, prompt_token_ids: Sequence[int]) -> int:
        """Tokens of the longest cached state that starts this prompt, fewer than its length; 0 when there is none."""
        if not self._restores or not len(self._memory.cache):
            return 0
        state = self._memory.cache.find(np.array(prompt_token_ids, dtype=np.int64))
        return 0 if state is None else usable_tokens(state, len(prompt_token_ids))

    def open_request(
        self,
        slot: int,
        prompt_token_ids: list[int],
        max_output_tokens: int,
        sampling: SamplingParameters,
        *,
        cached_tokens: int = 0,
        boundaries: Sequence[int] = (),
        emitted_before: int = 0,
    ) -> None:
        """Put a request into a free slot; see gpu.device.Device. Nothing is held after an error.

        Raises PagesExhausted, RequestExceedsPool or InvalidRequest.
        """
        self._check_request(slot, prompt_token_ids, max_output_tokens, emitted_before)
        bias_by_token(sampling, self._limits.vocab_size)  # raises here rather than on the executor's thread
        prompt = np.array(prompt_token_ids, dtype=np.int64)
        start = self._memory.cache.find_usable(prompt, cached_tokens) if cached_tokens else None
        if cached_tokens and (start is None or not self._restores or cached_tokens >= len(prompt)):
            raise InvalidRequest(f"no state of the prompt's first {cached_tokens} tokens is cached")
        capacity = min(len(prompt) + max_output_tokens, self._limits.context_tokens)
        whole = pages_for(capacity + self._limits.draft_tokens)
        self._memory.pool.check_fits(whole)
        first_pages = pages_for(start.endpoint if start is not None else 0)
        request = OpenRequest(
            slot=slot,
            prompt=prompt,
            tokens=list(prompt_token_ids),
            sampling=sampling,
            memory=self._memory.open(first_pages if self._grows else whole, start),
            capacity=capacity,
            cached_tokens=cached_tokens,
            anchor=max((end for end in boundaries if cached_tokens < end <= len(prompt)), default=None),
            emitted_before=emitted_before,
            ready=start is None and not self._initialises,
        )
        self._requests[slot] = request
        self._upload_request(request)

    def close_request(self, slot: int) -> None:
        """Give the pages back, at once or after the last submitted frame that uses them. Idempotent; frees the slot."""
        request = self._requests.pop(slot, None)
        if request is None:
            return
        self._uploads.append(functools.partial(self._sampling.close, slot))
        if request.frames:
            self._closing.append(request)
        else:
            self._memory.close(request.memory)

    def copy_proposals(self, slot: int) -> int:
        """Drafts that the request's own tokens suggest for its next round; the next frame with `copies` uses them."""
        request = self._requests.get(slot)
        if request is None or request.prompt_left:
            return 0
        return len(request.copy_proposals(self._limits.draft_tokens))

    def submit(self, frame: Frame) -> None:
        """Queue the frame. Raises InvalidFrame, or PagesExhausted; nothing ran or is held then."""
        program = self._programs.get(frame.shape)
        if program is None:
            raise InvalidFrame(f"frame {frame.fence}: {frame.shape.label} is not a prepared program")
        check_queue(frame, [submitted.frame for submitted in self._in_flight])
        lanes = check_frame(frame, self._requests, self._drafts)
        snapshots: tuple[Snapshot | None, ...] = ()
        inputs: Sequence[Any]
        if frame.shape.kind in SNAPSHOT_KINDS:
            snapshots = tuple(map(self._begin_snapshot, lanes))
            pairs = zip(lanes, snapshots, strict=True)
            inputs = [snapshot_copy(lane.request.slot, taken) for lane, taken in pairs if taken is not None]
        elif frame.shape.kind is GraphKind.RESTORE:
            inputs = [restore_copy(r.slot, r.memory, r.cached_tokens) for r in (lane.request for lane in lanes)]
        elif frame.shape.kind is GraphKind.INIT:
            inputs = [lane.request.slot for lane in lanes]
        else:
            self._reserve(lanes)
            inputs = [lane.input for lane in lanes]
        for lane in lanes:
            lane.request.frames += 1
            lane.request.ceiling += lane.ceiling
        uploads, self._uploads = self._uploads, []
        self._in_flight.append(_Submitted(frame, lanes, snapshots))
        self._transport.submit(uploads, program, inputs)

    def collect(self) -> FrameResult | None:
        """The oldest finished frame, or None while it runs or none was submitted."""
        finished = self._transport.collect()
        if finished is None:
            return None
        submitted = self._in_flight.popleft()
        results = self._take(submitted, finished)
        self._release(submitted)
        self._busy_ns += finished.device_ns
        confidence, survival = self._sidecars(submitted, finished.output)
        return FrameResult(
            fence=submitted.frame.fence,
            started_ns=finished.started_ns,
            completed_ns=finished.completed_ns,
            device_ns=finished.device_ns,
            lanes=results,
            error=finished.error,
            confidence=confidence,
            survival=survival,
        )

    def free_pages(self) -> int:
        """KV pages that can be had: free, or held by cached states alone."""
        return self._memory.free_pages

    def used_pages(self) -> int:
        """KV pages that open requests hold, closed ones in flight and states being restored included."""
        return self._memory.used_pages

    def free_snapshot_rows(self) -> int:
        """Snapshot destinations that can be had, a page for each included."""
        return self._memory.free_snapshot_rows

    def busy_ns(self) -> int:
        """Total time of the collected frames."""
        return self._busy_ns

    def shut_down(self, abandon: bool) -> None:
        """Stop the executor; with `abandon`, do not wait for a running program.

        A process that abandoned a program ends with os._exit: interpreter shutdown under a running torch call
        may abort.
        """
        self._transport.stop(abandon)

    def _check_request(self, slot: int, prompt: list[int], max_output_tokens: int, emitted_before: int) -> None:
        limits = self._limits
        if not 0 <= slot < limits.request_slots or slot in self._requests:
            raise InvalidRequest(f"slot {slot} is taken, or not one of 0 to {limits.request_slots - 1}")
        if not 1 <= len(prompt) < limits.context_tokens:
            raise InvalidRequest(
                f"the prompt has {len(prompt)} tokens; it needs at least 1 and at most {limits.context_tokens - 1}, "
                f"to leave one of the context's {limits.context_tokens} tokens for output"
            )
        if max_output_tokens < 1:
            raise InvalidRequest(f"max_output_tokens is {max_output_tokens}; it must be at least 1")
        if min(prompt) < 0 or max(prompt) >= limits.vocab_size:
            raise InvalidRequest(f"the prompt holds token ids outside 0 to {limits.vocab_size - 1}")
        if not 0 <= emitted_before < len(prompt):
            raise InvalidRequest(
                f"emitted_before is {emitted_before} of {len(prompt)} tokens; one must be the prompt's"
            )

    def _upload_request(self, request: OpenRequest) -> None:
        """A new request's row of the slots' state, with the pages that it has."""
        slot, emitted = request.slot, request.emitted_before
        split = len(request.tokens) - emitted
        opening = (slot, request.sampling, request.tokens[:split], request.tokens[split:])
        self._uploads.append(functools.partial(self._state.open, slot, emitted))
        self._uploads.append(functools.partial(self._state.set_pages, slot, 0, list(request.memory.pages)))
        self._uploads.append(functools.partial(self._sampling.open, *opening))

    def _reserve(self, lanes: Sequence[CheckedLane]) -> None:
        """Pages for every lane's ceiling and drafts, all or none, and their entries in the page table."""
        drafts = self._limits.draft_tokens
        short = []
        for lane in lanes:
            request = lane.request
            tokens, held = min(lane.tokens, request.capacity + drafts), len(request.memory.pages)
            if pages_for(tokens) > held:
                short.append((request, tokens, held))
        if not short:
            return
        self._memory.reserve([(request.memory, tokens) for request, tokens, _ in short])
        for request, _, held in short:
            fresh = request.memory.pages[held:]
            self._uploads.append(functools.partial(self._state.set_pages, request.slot, held, fresh))

    def _begin_snapshot(self, lane: CheckedLane) -> Snapshot | None:
        """A request whose answer has ended or that is preempted gives its last page away and runs no more."""
        request, retires = lane.request, lane.retires
        request.retired = request.retired or retires
        end = request.cursor
        if lane.keeps is not None and lane.keeps < end:
            # Keys and values up to any endpoint stand, the draft layer's too: nobody reads those behind it. The hidden
            # state there is gone, though; that of the cursor belongs to tokens that the state does not have. Zero, as
            # after an init program, makes one entry of the next turn's draft context poor, whatever rounds led here.
            # Only proposals depend on that: a prompt that is scored starts from no cached state.
            end = lane.keeps
            self._uploads.append(functools.partial(self._state.forget_hidden, request.slot))
        tokens = np.array(request.tokens[:end], dtype=np.int64)
        return self._memory.begin_snapshot(request.memory, tokens, request.role(retires), move=retires)

    def _take(self, submitted: _Submitted, finished: Finished) -> tuple[LaneResult, ...]:
        """The host's view follows what the frame did. A failed one changes nothing, and its snapshots are dropped."""
        kind, failed = submitted.frame.shape.kind, finished.error is not None
        for snapshot in submitted.snapshots:
            if snapshot is not None:
                self._memory.finish_snapshot(snapshot, copied=not failed)
        if failed:
            return ()
        if kind in STATE_KINDS:
            for lane in submitted.lanes:
                self._set_up(kind, lane.request)
            return (LaneResult(0, ()),) * len(submitted.lanes)
        assert finished.output is not None
        pairs = zip(submitted.lanes, finished.output.lanes, strict=True)
        results = tuple([lane_result(lane, output) for lane, output in pairs])
        for lane, result in zip(submitted.lanes, results, strict=True):
            if result.error is None:
                lane.request.advance(result.consumed_prompt_tokens, result.emitted_tokens)
        return results

    def _sidecars(
        self, submitted: _Submitted, output: RoundOutput | None
    ) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.float64] | None]:
        """FrameResult's confidence and survival."""
        if output is None or (output.confidence is None and output.survival is None):
            return None, None
        slots = [lane.request.slot for lane in submitted.lanes]
        sizes = self._limits.request_slots, self._draft_capacity
        confidence, survival = confidence_by_slot(output, slots, *sizes), survival_by_slot(output, slots, *sizes)
        if self._calibration is not None and confidence is not None and survival is not None:
            for request in (lane.request for lane in submitted.lanes):
                own = confidence[0, request.slot], survival[request.slot]
                confidence[:, request.slot] = self._calibration.corrected(request.sampling, *own)
        return confidence, survival

    def _set_up(self, kind: GraphKind, request: OpenRequest) -> None:
        """After an init or restore program the request can run."""
        if kind is GraphKind.RESTORE:
            assert request.memory.restoring is not None
            request.cursor = request.cached_tokens
            if request.cursor < request.memory.restoring.endpoint:
                # The restored hidden state is that of the token behind the cursor; see _begin_snapshot for zero.
                self._uploads.append(functools.partial(self._state.forget_hidden, request.slot))
            self._memory.restored(request.memory)
        if kind not in SNAPSHOT_KINDS:
            request.ready = True

    def _release(self, submitted: _Submitted) -> None:
        """Closed requests whose last frame this was give their pages back."""
        for lane in submitted.lanes:
            lane.request.frames -= 1
            lane.request.ceiling -= lane.ceiling
        for request in [request for request in self._closing if not request.frames]:
            self._closing.remove(request)
            self._memory.close(request.memory)
