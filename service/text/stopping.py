"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through up to the first stop string and withholds what may still become one.

    The stop string that is complete first ends the text; of several that end at the same character the longest
    counts. The result does not depend on how the text is cut into pieces. Nothing after a stop ever comes out.
    `stop_end`: characters up to the end of the stop string that was completed, of all that was fed.
    """

    __slots__ = ("_fed", "_held", "_longest", "_stops", "stop_end", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are non-empty strings; none at all passes everything through."""
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self._fed = 0
        self.stopped = False
        self.stop_end = 0

    def feed(self, text: str) -> str:
        """The text that is now certain to be output; sets `stopped` when a stop string was completed."""
        if self.stopped:
            return ""
        pending = self._held + text
        before = self._fed - len(self._held)
        self._fed += len(text)
        match = self._first_match(pending)
        if match is not None:
            end, begin = match
            self.stopped, self.stop_end = True, before + end
            self._held = ""
            return pending[:begin]
        keep = self._possible_start(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def finish(self) -> str:
        """The withheld text, once no more can follow; empty after a stop."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        """Where the stop string that ends first ends, and where it begins."""
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(ends) if ends else None

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
