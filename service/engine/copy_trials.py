"""When requests whose own rounds do not speak for copies may try them: seldom, and all at once.

An offer of copies costs more than the rows that verify it: no frame is queued behind the round that takes it, so that
the engine's own time is added to the device's. Where copies do not pay, trying them is to cost next to nothing.
"""

from __future__ import annotations

import dataclasses
import math

LEAST_COPIES = 0.25
"""Accepted drafts per copied round; fewer are not worth a frame that no other is queued behind."""
LONGEST_PAUSE = 64
_MEMORY_ROUNDS = 8


@dataclasses.dataclass(slots=True)
class CopyTrials:
    """What all requests' copies did lately.

    `mean`: drafts accepted per copied round of a request. `pause`: completions between two trials, none at first;
    doubled by each trial that comes to nothing. `rest`: completions until the next. `holds`: no frame is queued, so
    that copies can be offered when the one in flight completes.
    """

    mean: float = math.inf
    pause: int = 0
    rest: int = 0
    holds: bool = False

    @property
    def due(self) -> bool:
        """Whether a request may try copies now."""
        return not self.rest

    def completed(self) -> None:
        """A frame is complete."""
        self.rest = max(0, self.rest - 1)

    def verified(self, rounds: int, accepted: int) -> None:
        """A frame verified the copies of `rounds` requests, at least 1; `accepted` drafts were right."""
        share = accepted / rounds
        known = min(1.0, rounds / _MEMORY_ROUNDS) if math.isfinite(self.mean) else 1.0
        self.mean = share if known == 1.0 else self.mean + (share - self.mean) * known
        if self.mean >= LEAST_COPIES:
            self.pause = self.rest = 0
        else:
            self.failed()

    def failed(self) -> None:
        """Copies were offered, and did not pay."""
        if not self.rest:
            self.pause = min(LONGEST_PAUSE, 2 * self.pause + 1)
        self.rest = self.pause
