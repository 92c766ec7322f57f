"""What goes into a prepared program's run and what comes out of it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from gpu.device import TokenLogprobs
from gpu.model.draft_head import DraftHead
from gpu.model.weights import Model
from gpu.pages import KvCache
from gpu.sampling import SamplingTable
from gpu.sampling.device_table import DeviceSamplingTable
from gpu.state import SlotState

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


class ExecutionStyle(enum.Enum):
    """EAGER runs operation by operation, reads only the KV columns in use and samples on the host.

    CAPTURED does the same work on every run, in static buffers and on the model's device only, so that it can be
    recorded as a CUDA graph.
    """

    EAGER = "eager"
    CAPTURED = "captured"


class LaneInput(msgspec.Struct, frozen=True):
    """One lane of an inference program. Tokens start at the slot's cursor.

    `prompt`: the prompt tokens to consume; None: a decoding lane, whose pending token comes first. `finishes`: a
    token is drawn after the prompt tokens; decoding lanes always draw. `rows`: verification rows with the pending
    token's (at least 1), an upper limit where the device allocates them. `copies`: the drafts to verify instead of
    learned ones; at least rows - 1 of them.
    """

    slot: int
    prompt: Int64 | None = None
    finishes: bool = True
    rows: int = 1
    copies: Int64 | None = None


class LaneOutput(msgspec.Struct, frozen=True):
    """What a lane did. `emitted`: committed token ids, the accepted drafts first.

    `accepted` of the `offered` drafts were right. `finite`: False where the logits held NaN or +inf, those that score
    a prompt among them; the lane then did nothing that counts. `logprobs`: one for each emitted token of a request
    that asked. `prompt_logprobs`: one for each consumed prompt token but the prompt's first, from scored prefill.
    """

    emitted: tuple[int, ...]
    accepted: int = 0
    offered: int = 0
    finite: bool = True
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class RoundOutput(msgspec.Struct, frozen=True):
    """`lanes` in input order.

    `confidence` float32 [lanes, D]: conditional, for every produced position of learned lanes, 0 elsewhere; None
    without learned drafts. `survival` float64 [lanes, D]: cumulative, NaN where not evaluated; None when D is 0.
    """

    lanes: tuple[LaneOutput, ...]
    confidence: Float32 | None = None
    survival: Float64 | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class StateCopy:
    """One lane of a snapshot, restore or terminal snapshot: a page's first `rows` tokens, and a hidden state.

    The hidden state comes from `source_slot` or else the snapshot `source_row`, and goes to `target_slot` or else
    the snapshot `target_row`. A restore also sets the target slot's `cursor`.
    """

    source_page: int
    target_page: int
    rows: int
    source_slot: int | None = None
    source_row: int | None = None
    target_slot: int | None = None
    target_row: int | None = None
    cursor: int | None = None


AllocateRows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor], None]
"""(joint [lanes, D], limits [lanes], slots [lanes], target_rows, rows_out [lanes]): see gpu.allocation."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramContext:
    """What all programs of a device share.

    `sampling` is the gpu.sampling table of the request slots. `cache` has one layer more than the model where there
    is a draft head. `allocate_rows` is needed by shapes whose rows the device allocates, `device_sampling` (the same
    requests as `sampling`) by programs that are captured or not on the CPU.
    """

    model: Model
    cache: KvCache
    state: SlotState
    sampling: SamplingTable
    draft_head: DraftHead | None = None
    allocate_rows: AllocateRows | None = None
    device_sampling: DeviceSamplingTable | None = None
    style: ExecutionStyle = ExecutionStyle.EAGER
