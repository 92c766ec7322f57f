"""What the device knows of each resident request: token ids, progress and pages. The worker thread owns all of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from gpu.device import SamplingParameters

Int64 = npt.NDArray[np.int64]


@dataclasses.dataclass(slots=True, eq=False)
class ResidentRequest:
    """One open request.

    `cursor`: tokens whose keys and values are in the pages. `pending`: the newest output token, not yet in the
    pages; None until the prompt is finished. `emitted`: output tokens so far. `capacity`: tokens reserved.
    """

    slot: int
    prompt: Int64
    sampling: SamplingParameters
    pages: tuple[int, ...]
    page_row: Int64
    capacity: int
    cursor: int = 0
    pending: int | None = None
    emitted: int = 0

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that no frame has consumed yet."""
        return max(0, len(self.prompt) - self.cursor)

    def advance(self, consumed: int, token: int | None) -> None:
        """Take a finished lane into account: `consumed` tokens are in the pages, `token` was sampled."""
        self.cursor += consumed
        if token is not None:
            self.pending = token
            self.emitted += 1


@dataclasses.dataclass(frozen=True, slots=True)
class LaneWork:
    """A lane's inputs, fixed when its frame is submitted.

    `token_ids` go to positions `start`, `start + 1`, …; `draws` tells whether a token is sampled after the last of
    them, and `draw_index` which output token of the request that is.
    """

    request: ResidentRequest
    token_ids: Int64
    start: int
    draws: bool
    draw_index: int
