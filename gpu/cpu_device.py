"""A model on the CPU: prepared programs run eagerly by one thread, one frame at a time."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from gpu.device import (
    DeviceError,
    DeviceLimits,
    Frame,
    FrameLane,
    FrameResult,
    InvalidFrame,
    InvalidRequest,
    LaneResult,
    Progress,
    SamplingParameters,
)
from gpu.executor import SingleExecutor
from gpu.pages import PagePool, pages_for
from gpu.programs.buffers import Logits
from gpu.requests import LaneWork, ResidentRequest
from gpu.sampling import sample
from scheduler.shapes import GraphKind, GraphShape

_NON_FINITE = "the model's logits are not finite numbers; its weights are damaged or overflow in this precision"


class Program(Protocol):
    """A prepared program."""

    def run(self, works: tuple[LaneWork, ...]) -> Logits:
        """Logits [lanes, vocab]; no lanes warms the program up and touches only the padding page."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Finished:
    """What the executor hands back: `tokens` has one entry per lane, None where a row was not finite."""

    frame: Frame | None
    started_ns: int
    completed_ns: int
    tokens: tuple[int | None, ...]
    error: str | None


class CpuDevice:
    """Implements gpu.device.Device. The worker thread calls; only programs run on the executor's thread."""

    def __init__(self, programs: dict[GraphShape, Program], limits: DeviceLimits, threads: int) -> None:
        self._programs = programs
        self._limits = limits
        self._pool = PagePool(limits.kv_pages)
        self._requests: dict[int, ResidentRequest] = {}
        self._running: tuple[LaneWork, ...] | None = None
        self._closed_while_running: list[ResidentRequest] = []
        self._busy_ns = 0
        self._executor: SingleExecutor[_Finished] = SingleExecutor(
            "helios-programs", lambda: torch.set_num_threads(threads)
        )

    @property
    def shapes(self) -> tuple[GraphShape, ...]:
        """Every prepared program: prefill by capacity, then decode by batch."""
        return tuple(self._programs)

    @property
    def limits(self) -> DeviceLimits:
        """The sizes that admission checks."""
        return self._limits

    @property
    def completion_fd(self) -> int:
        """Readable while a result waits to be collected."""
        return self._executor.completion_fd

    def prepare(self, progress: Progress) -> None:
        """Run every program once over padding rows. Waits; raises DeviceError when one fails."""
        for done, (shape, program) in enumerate(self._programs.items()):
            progress(f"warming up {shape.label}", done / len(self._programs))
            self._executor.submit(functools.partial(_run_program, program, None, ()))
            error = self._executor.wait().error
            if error is not None:
                raise DeviceError(f"the program {shape.label} failed: {error}")
        progress("ready", 1.0)

    def open_request(
        self, slot: int, prompt_token_ids: list[int], max_output_tokens: int, sampling: SamplingParameters
    ) -> None:
        """Reserve pages for the prompt and max_output_tokens, cut at the context.

        Raises PagesExhausted, RequestExceedsPool or InvalidRequest; nothing is held after an error.
        """
        self._check_request(slot, prompt_token_ids, max_output_tokens)
        capacity = min(len(prompt_token_ids) + max_output_tokens, self._limits.context_tokens)
        pages = self._pool.allocate(pages_for(capacity))
        self._requests[slot] = ResidentRequest(
            slot=slot,
            prompt=np.array(prompt_token_ids, dtype=np.int64),
            sampling=sampling,
            pages=pages,
            page_row=np.array(pages, dtype=np.int64),
            capacity=capacity,
        )

    def close_request(self, slot: int) -> None:
        """Give the pages back, at once or after the running frame that uses them. Idempotent; frees the slot."""
        request = self._requests.pop(slot, None)
        if request is None:
            return
        if self._running is not None and any(work.request is request for work in self._running):
            self._closed_while_running.append(request)
        else:
            self._pool.release(request.pages)

    def submit(self, frame: Frame) -> None:
        """Start the frame. Raises InvalidFrame when it fits neither the program nor its requests' state."""
        if self._running is not None:
            raise InvalidFrame(f"frame {frame.fence}: another frame is in flight")
        program = self._programs.get(frame.shape)
        if program is None:
            raise InvalidFrame(f"frame {frame.fence}: {frame.shape.label} is not a prepared program")
        works = self._lane_works(frame)
        self._running = works
        self._executor.submit(functools.partial(_run_program, program, frame, works))

    def collect(self) -> FrameResult | None:
        """The finished frame, or None while it runs or none was submitted."""
        finished = self._executor.collect()
        if finished is None:
            return None
        works, self._running = self._running, None
        assert works is not None
        assert finished.frame is not None
        lanes = tuple(_finish_lane(work, token) for work, token in zip(works, finished.tokens, strict=False))
        for request in self._closed_while_running:
            self._pool.release(request.pages)
        self._closed_while_running.clear()
        duration = finished.completed_ns - finished.started_ns
        self._busy_ns += duration
        return FrameResult(
            fence=finished.frame.fence,
            started_ns=finished.started_ns,
            completed_ns=finished.completed_ns,
            device_ns=duration,
            lanes=lanes,
            error=finished.error,
        )

    def free_pages(self) -> int:
        """KV pages that no request holds."""
        return self._pool.free

    def busy_ns(self) -> int:
        """Total time of the collected frames."""
        return self._busy_ns

    def shut_down(self, abandon: bool) -> None:
        """Stop the executor; with `abandon`, do not wait for a running program.

        A process that abandoned a program ends with os._exit: interpreter shutdown under a running torch call
        may abort.
        """
        self._executor.stop(abandon)

    def _check_request(self, slot: int, prompt: list[int], max_output_tokens: int) -> None:
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

    def _lane_works(self, frame: Frame) -> tuple[LaneWork, ...]:
        slots = [lane.slot for lane in frame.lanes]
        if not 1 <= len(slots) <= frame.shape.batch_capacity or len(set(slots)) != len(slots):
            raise InvalidFrame(
                f"frame {frame.fence}: slots {slots} must be distinct, at least 1 and at most "
                f"{frame.shape.batch_capacity} for {frame.shape.label}"
            )
        prefills = frame.shape.kind is GraphKind.PREFILL
        make: Callable[[Frame, FrameLane], LaneWork] = self._prefill_work if prefills else self._decode_work
        return tuple(make(frame, lane) for lane in frame.lanes)

    def _prefill_work(self, frame: Frame, lane: FrameLane) -> LaneWork:
        request = self._open(frame, lane)
        if not 1 <= lane.query_length <= min(frame.shape.prefill_capacity, request.prompt_left):
            raise InvalidFrame(
                f"frame {frame.fence}: slot {lane.slot} asks for {lane.query_length} prompt tokens; "
                f"{request.prompt_left} are left and {frame.shape.label} takes {frame.shape.prefill_capacity}"
            )
        end = request.cursor + lane.query_length
        tokens = request.prompt[request.cursor : end]
        return LaneWork(request, tokens, request.cursor, draws=end == len(request.prompt), draw_index=0)

    def _decode_work(self, frame: Frame, lane: FrameLane) -> LaneWork:
        request = self._open(frame, lane)
        if request.pending is None or request.cursor >= request.capacity or lane.query_length != 1:
            raise InvalidFrame(
                f"frame {frame.fence}: slot {lane.slot} cannot decode: query_length {lane.query_length}, "
                f"{request.prompt_left} prompt tokens left, {request.cursor} of {request.capacity} tokens used"
            )
        tokens = np.array([request.pending], dtype=np.int64)
        return LaneWork(request, tokens, request.cursor, draws=True, draw_index=request.emitted)

    def _open(self, frame: Frame, lane: FrameLane) -> ResidentRequest:
        request = self._requests.get(lane.slot)
        if request is None:
            raise InvalidFrame(f"frame {frame.fence}: slot {lane.slot} holds no open request")
        return request


def _run_program(program: Program, frame: Frame | None, works: tuple[LaneWork, ...]) -> _Finished:
    """On the executor's thread: run, sample and time. A failure becomes a result, so the device lives on."""
    started_ns = time.monotonic_ns()
    tokens: tuple[int | None, ...] = ()
    error = None
    try:
        with torch.inference_mode():
            logits = program.run(works)
        tokens = sample(logits, [work.request.sampling for work in works], [work.draw_index for work in works])
    except Exception as failure:  # whatever a program raises must not end the executor
        error = f"{type(failure).__name__}: {failure}"
    return _Finished(frame, started_ns, time.monotonic_ns(), tokens, error)


def _finish_lane(work: LaneWork, token: int | None) -> LaneResult:
    """Advance the request, which may have closed meanwhile. A lane without finite logits stays where it was."""
    if token is None:
        return LaneResult(consumed_prompt_tokens=0, emitted_tokens=(), error=_NON_FINITE)
    was_prompt = work.request.pending is None
    work.request.advance(len(work.token_ids), token if work.draws else None)
    return LaneResult(
        consumed_prompt_tokens=len(work.token_ids) if was_prompt else 0,
        emitted_tokens=(token,) if work.draws else (),
    )
