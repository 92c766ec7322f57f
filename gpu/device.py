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
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

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
    """How one request's tokens are drawn. temperature 0 is greedy; top_k 0 and top_p 1 keep the whole vocabulary.

    Order: penalties and bias on the logits, temperature, then top_k, top_p and min_p (a share of the largest
    probability). `repetition_penalty` (1: none) sees prompt and output, `presence_penalty` and `frequency_penalty`
    (0: none) the output only. `logit_bias`: (token id, addend) pairs. `seed` fixes every draw of this request.
    `reproducible`: the client named the seed, so drafts are deterministic and verified by equality: the output is
    then that of plain decoding, whatever rounds it came in. `logprobs`: report each output token's log-probability
    under the model's own distribution and those of this many likeliest tokens; None: nothing. `prompt_logprobs`:
    the same for each prompt token but the first.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    reproducible: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceLimits:
    """`context_tokens`: prompt plus output of one request. `page_tokens`: tokens per KV page.

    `snapshot_rows`: complete states that the prefix cache can hold. `draft_tokens`: the deepest prepared draft, 0
    without speculation. `learned_drafts`: a draft head is loaded; without one only copies are proposed.
    """

    context_tokens: int
    kv_pages: int
    page_tokens: int
    vocab_size: int
    request_slots: int
    snapshot_rows: int = 0
    draft_tokens: int = 0
    learned_drafts: bool = False


class FrameLane(msgspec.Struct, frozen=True):
    """One lane to run.

    `query_length`: prompt tokens from the request's cursor while its prompt is unfinished; else verification rows,
    the pending token's included (an upper limit where the device allocates rows); 1 in state graphs.
    `copies`: the drafts are the request's copy proposals rather than learned ones. `retires`: in a snapshot, the
    request has ended or is preempted and runs no more, as in every terminal snapshot. `keeps`: with `retires`, the
    state is to end after that many tokens at the latest, where rounds have computed tokens behind the answer's end;
    None: it has all that was computed.
    """

    slot: int
    query_length: int
    copies: bool = False
    retires: bool = False
    keeps: int | None = None


class Frame(msgspec.Struct, frozen=True):
    """One prepared program to run once, with 1 to batch_capacity lanes."""

    fence: int
    shape: GraphShape
    lanes: tuple[FrameLane, ...]


class TokenLogprobs(msgspec.Struct, frozen=True):
    """A token, its log-probability, and the likeliest tokens with theirs, likeliest first. -inf is a legal value."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class LaneResult(msgspec.Struct, frozen=True):
    """`emitted_tokens`: committed ids, empty while the prompt is not finished and in state graphs.

    `error`: set when this lane alone failed (its logits are not finite); it consumed and emitted nothing, and its
    request cannot go on. `accepted_tokens` of `offered_tokens` drafts were verified as right. `logprobs`: one entry
    per emitted token when the request asked for them. `prompt_logprobs`: one per consumed prompt token but the
    prompt's first, from scored prefill.
    """

    consumed_prompt_tokens: int
    emitted_tokens: tuple[int, ...]
    error: str | None = None
    accepted_tokens: int = 0
    offered_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class FrameResult(msgspec.Struct, frozen=True):
    """A finished frame. Times are CLOCK_MONOTONIC ns; `device_ns` is the program's own interval.

    `lanes` is in the frame's order, empty when `error` says why the program failed. `confidence`: float32
    [2, request_slots, draft capacity] of a round with learned drafts, [0] conditional and [1] joint, covering every
    produced prefix. `survival`: float64 [request_slots, draft capacity], cumulative products of min(1, p/q) for
    evaluated prefixes, NaN elsewhere. Draft capacity is the catalog's largest draft_depth, at least 1.
    """

    fence: int
    started_ns: int
    completed_ns: int
    device_ns: int
    lanes: tuple[LaneResult, ...]
    error: str | None = None
    confidence: npt.NDArray[np.float32] | None = None
    survival: npt.NDArray[np.float64] | None = None


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

    def match_prefix(self, prompt_token_ids: Sequence[int]) -> int:
        """Tokens of the longest cached state that starts this prompt, fewer than its length; 0 when there is none.

        What it names stays until the next call that changes anything, so admit the request at once.
        """

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
        """Put a request into a free slot, with the state of `cached_tokens` from match_prefix() to be restored.

        `boundaries`: prompt endpoints of completed messages. `emitted_before`: output tokens at the prompt's end,
        of a request that was preempted. Pages are taken as frames need them, or whole where the catalog has no
        state graphs. Raises PagesExhausted, RequestExceedsPool or InvalidRequest; nothing is held after an error.
        """

    def close_request(self, slot: int) -> None:
        """Give the pages back, at once or after the last submitted frame that uses them. Idempotent."""

    def copy_proposals(self, slot: int) -> int:
        """Drafts that the request's own tokens suggest for its next round, 0 without a match."""

    def submit(self, frame: Frame) -> None:
        """Queue the frame. Two may be in flight when both are decode or speculative; any other drains first.

        Raises InvalidFrame, or PagesExhausted when its lanes' pages cannot be had; nothing ran or is held then.
        """

    def collect(self) -> FrameResult | None:
        """The oldest finished frame, or None while it runs or none was submitted."""

    def free_pages(self) -> int:
        """KV pages that can be had: free, or held by cached states alone."""

    def used_pages(self) -> int:
        """KV pages that open requests hold."""

    def free_snapshot_rows(self) -> int:
        """Snapshot destinations that can be had, a page for each included."""

    def busy_ns(self) -> int:
        """Total time that programs have run since the start."""

    def shut_down(self, abandon: bool) -> None:
        """Stop the executor; with `abandon`, do not wait for a running program."""
