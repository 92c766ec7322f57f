"""What the host knows of each open request: token ids, progress and pages. The worker thread owns all of it.

It follows the slots' state (gpu/state.py) when a frame is collected, and so lags behind it while frames are in flight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.copies import CopyIndex
from gpu.device import SamplingParameters
from gpu.memory import RequestPages
from gpu.prefix_cache import Role

Int64 = npt.NDArray[np.int64]


@dataclasses.dataclass(slots=True, eq=False)
class OpenRequest:
    """One open request. Invariants:

    `prompt` [n]; `tokens`: prompt and output, n or more. `cursor`: tokens in KV; behind the prompt it is
    len(tokens) - 1, since the newest token is pending. `capacity`: the most tokens in KV. `cached_tokens`: those that
    its restored state brings. `anchor`: the last message boundary that may be captured. `emitted_before`: how many of
    the prompt's last tokens are output of earlier lives. `ready`: its slot's state has been set up. `retired`: it gave
    its last page to a cached state and runs no more. `frames`: submitted and not collected; `ceiling`: output tokens
    that these can emit at the most. `offer`: the copy
    proposals for the next round, once they were asked for.
    """

    slot: int
    prompt: Int64
    tokens: list[int]
    sampling: SamplingParameters
    memory: RequestPages
    capacity: int
    cached_tokens: int
    anchor: int | None
    emitted_before: int
    ready: bool
    cursor: int = 0
    retired: bool = False
    frames: int = 0
    ceiling: int = 0
    offer: Int64 | None = None
    index: CopyIndex | None = None

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that no frame has consumed yet."""
        return max(0, len(self.prompt) - self.cursor)

    def advance(self, consumed: int, emitted: Sequence[int]) -> None:
        """Take a collected lane into account: prompt tokens that it consumed, output tokens that it committed."""
        self.cursor += consumed if consumed else len(emitted)
        self.tokens.extend(emitted)
        self.offer = None
        if self.index is not None:
            self.index.extend(emitted)

    def copy_proposals(self, limit: int) -> Int64:
        """Up to `limit` proposals; they stay the same until the request advances."""
        if self.offer is None:
            if self.index is None:
                self.index = CopyIndex(self.tokens)
            self.offer = np.array(self.index.propose(limit), dtype=np.int64)
        return self.offer

    def role(self, retires: bool) -> Role:
        """What a state captured now is good for."""
        if retires:
            return Role.TERMINAL
        if self.anchor is None:
            return Role.PROMPT_END if self.cursor == len(self.prompt) else Role.EXTRA
        return Role.ANCHOR if self.cursor == self.anchor else Role.EXTRA
