"""What the engine's worker loop asks of a device, and nothing more.

A device owns the model, the KV pages and one executor. The worker opens requests, submits one frame at a time
and collects its result; `completion_fd` becomes readable when a result waits, so the worker can sleep on it
together with its sockets.

    DeviceError
    ├── DeviceUnavailable   this machine or build has no such device
    ├── InvalidSettings     sizes that no device can be built with
    ├── ModelError          the model's files are missing, damaged or of an unsupported kind
    ├── PagesExhausted      not enough free KV pages now
    ├── RequestExceedsPool  more KV pages than there are
    ├── InvalidRequest      a request that no device can run
    └── InvalidFrame        a frame that fits neither its program nor its requests' state
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from scheduler.shapes import GraphShape


class DeviceError(Exception):
    """Base of the errors that a device raises on purpose."""


class PagesExhausted(DeviceError):
    """Not enough free KV pages now; try again after a request closes."""


class RequestExceedsPool(DeviceError):
    """The request needs more KV pages than the pool has in all; it can never run here."""


class ModelError(DeviceError):
    """The model's files are missing, damaged or of an unsupported kind; the message says what to do."""


class DeviceUnavailable(DeviceError):
    """This machine or build has no such device."""


class InvalidSettings(DeviceError, ValueError):
    """Sizes that no device can be built with; the message names the setting and what is allowed."""


class InvalidRequest(DeviceError, ValueError):
    """A request that no device can run: an empty or too long prompt, unknown token ids, a taken slot."""


class InvalidFrame(DeviceError, ValueError):
    """A frame that fits neither its program nor its requests' state; the caller's mistake, nothing ran."""


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingParameters:
    """temperature 0 is greedy. `seed` fixes the draws of this request: token i depends on (seed, i) and the logits."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceLimits:
    """`context_tokens`: prompt plus output of one request. `page_tokens`: tokens per KV page."""

    context_tokens: int
    kv_pages: int
    page_tokens: int
    vocab_size: int
    request_slots: int


@dataclasses.dataclass(frozen=True, slots=True)
class FrameLane:
    """One lane to run: `query_length` prompt tokens from the request's cursor, or 1 pending token."""

    slot: int
    query_length: int


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One prepared program to run once. Prefill frames have one lane, decode frames up to batch_capacity."""

    fence: int
    shape: GraphShape
    lanes: tuple[FrameLane, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LaneResult:
    """`emitted_tokens`: sampled ids, empty while the prompt is not finished.

    `error`: set when this lane alone failed (its logits are not finite); it consumed and emitted nothing, and its
    request cannot go on.
    """

    consumed_prompt_tokens: int
    emitted_tokens: tuple[int, ...]
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrameResult:
    """A finished frame. Times are CLOCK_MONOTONIC ns; `device_ns` is the program's own interval.

    `lanes` is in the frame's order, empty when `error` says why the program failed.
    """

    fence: int
    started_ns: int
    completed_ns: int
    device_ns: int
    lanes: tuple[LaneResult, ...]
    error: str | None = None


Progress = Callable[[str, float], None]
"""Called with what is being done and the share done so far, 0 to 1."""


class Device(Protocol):
    """A loaded model on some hardware. All calls come from the worker thread and return at once, but prepare()."""

    @property
    def shapes(self) -> tuple[GraphShape, ...]:
        """Every prepared program, in catalog order."""

    @property
    def limits(self) -> DeviceLimits:
        """The sizes that admission checks."""

    @property
    def completion_fd(self) -> int:
        """Readable while a result waits to be collected."""

    def prepare(self, progress: Progress) -> None:
        """Run every program once so that no first call is slow, and leave no trace in any state."""

    def open_request(
        self, slot: int, prompt_token_ids: list[int], max_output_tokens: int, sampling: SamplingParameters
    ) -> None:
        """Reserve every page the request can need. Raises PagesExhausted or RequestExceedsPool."""

    def close_request(self, slot: int) -> None:
        """Give the pages back, at once or after the running frame that uses them. Idempotent."""

    def submit(self, frame: Frame) -> None:
        """Start the frame; at most one is in flight."""

    def collect(self) -> FrameResult | None:
        """The finished frame, or None while it runs or none was submitted."""

    def free_pages(self) -> int:
        """KV pages that no request holds."""

    def busy_ns(self) -> int:
        """Total time that programs have run since the start."""

    def shut_down(self, abandon: bool) -> None:
        """Stop the executor; with `abandon`, do not wait for a running program."""
