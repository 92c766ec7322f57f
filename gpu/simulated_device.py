"""A device without a model: its frames take the times that were measured elsewhere, and its tokens are made up.

All else is as on any device: KV pages, limits, the order of frames, what is refused.
"""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from gpu.create import context_limit
from gpu.device import DeviceLimits, InvalidSettings
from gpu.model.weights import open_source
from gpu.pages import PAGE_TOKENS, pages_for
from gpu.prepared_device import PreparedDevice
from gpu.programs.create import STATE_KINDS
from gpu.simulated_transport import DraftLuck, SimulatedProgram, SimulatedSlots, SimulatedTransport, sleep_until
from gpu.state import SlotState
from scheduler.shapes import Allocation, GraphShape


class SimulatedDevice(PreparedDevice[SimulatedProgram]):
    """Implements gpu.device.Device; frames wait on a thread of their own."""

    def __init__(
        self,
        durations: Mapping[GraphShape, Callable[[float], float]],
        limits: DeviceLimits,
        token_ids: Sequence[int],
        luck: DraftLuck | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        wait_until: Callable[[int], None] = sleep_until,
    ) -> None:
        """`durations`: each program's time in ms, see SimulatedProgram. `token_ids`: what answers are drawn from.

        `luck` is needed where a program has drafts. Raises InvalidSettings.
        """
        _check(durations, limits, token_ids, luck)
        columns = pages_for(limits.context_tokens + limits.draft_tokens)
        slots = SimulatedSlots(token_ids, limits.context_tokens, luck)
        super().__init__(
            {shape: SimulatedProgram(shape, duration) for shape, duration in durations.items()},
            limits,
            SlotState(limits.request_slots, columns, 1, torch.float32),
            slots,
            SimulatedTransport(slots, clock, wait_until),
            calibrates=False,  # its confidence is the true probability
        )


def create_simulated_device(
    model_path: str | os.PathLike[str],
    durations: Mapping[GraphShape, Callable[[float], float]],
    token_ids: Sequence[int],
    luck: DraftLuck | None = None,
    *,
    request_slots: int = 64,
    max_context: int | None = None,
    kv_pages: int | None = None,
) -> SimulatedDevice:
    """A device with the vocabulary and the context of the model at `model_path`, whose weights are not loaded.

    `durations`, `token_ids`, `luck`: see SimulatedDevice; ids outside the vocabulary are left out. `max_context`
    (tokens of prompt plus output) defaults to the model's own limit, at most 2,048; `kv_pages` to what the longest
    requests of all slots fill. Raises InvalidSettings or ModelError.
    """
    config = open_source(pathlib.Path(model_path)).config
    context = context_limit(config, max_context)
    draft_tokens = max((shape.draft_depth for shape in durations), default=0)
    pages = request_slots * pages_for(context + draft_tokens) if kv_pages is None else kv_pages
    limits = DeviceLimits(
        context_tokens=context,
        kv_pages=pages,
        page_tokens=PAGE_TOKENS,
        vocab_size=config.vocab_size,
        request_slots=request_slots,
        draft_tokens=draft_tokens,
        learned_drafts=draft_tokens > 0,
    )
    return SimulatedDevice(durations, limits, [i for i in token_ids if i < config.vocab_size], luck)


def _check(
    shapes: Mapping[GraphShape, object], limits: DeviceLimits, token_ids: Sequence[int], luck: DraftLuck | None
) -> None:
    if not token_ids:
        raise InvalidSettings("there is no token to make answers from; the model's vocabulary has no plain ones")
    if limits.kv_pages < 1 or limits.request_slots < 1:
        raise InvalidSettings(
            f"kv_pages is {limits.kv_pages} and request_slots is {limits.request_slots}; both must be at least 1"
        )
    for shape in shapes:
        if shape.kind in STATE_KINDS:
            raise InvalidSettings(f"a simulated device caches no states; leave {shape.label} out")
        if shape.draft_depth and shape.allocation is Allocation.DEVICE:
            raise InvalidSettings(f"a simulated device divides no rows; {shape.label} needs allocation none or host")
        if shape.draft_depth and luck is None:
            raise InvalidSettings(f"{shape.label} has drafts, and nothing says how many of them are accepted")
