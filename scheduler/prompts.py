"""A prompt's stops: where prefill must or may not end, and which images are served together. Pure arithmetic."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Sequence

from scheduler.records import ImageSpan, RequestSpec

Span = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Images whose features are stored at the same time: [`first_token`, ...), `images` of them (S5)."""

    first_token: int
    images: int


@dataclasses.dataclass(slots=True)
class Prompt:
    """One request's prompt.

    `blocks`: disjoint, ascending [first, end) intervals that no chunk may end inside: atomic spans and images,
    overlapping ones joined. `windows`: the image windows in prompt order; `window`: index of the active one.
    `anchor`: the conversation anchor's endpoint, -1 without one; `extras`: the other chosen cuts, ascending (S10).
    """

    tokens: int
    blocks: tuple[Span, ...] = ()
    windows: tuple[Window, ...] = ()
    window: int = 0
    anchor: int = -1
    extras: tuple[int, ...] = ()

    @property
    def next_window(self) -> Window | None:
        """The window after the active one."""
        return self.windows[self.window + 1] if self.window + 1 < len(self.windows) else None

    def segment_end(self, consumed: int) -> int:
        """The first stop above `consumed`: a cut, the next window's first token, the prompt end."""
        stops = [self.tokens, self.anchor, *self.extras]
        following = self.next_window
        if following is not None:
            stops.append(following.first_token)
        return min((stop for stop in stops if stop > consumed), default=self.tokens)

    def work(self, consumed: int, segment_end: int, capacity: int) -> int:
        """Prompt tokens that a graph of this capacity consumes next; 0 when a block does not fit."""
        end = min(consumed + capacity, segment_end)
        return max(0, outside_blocks(self.blocks, end) - consumed)

    def works(self, consumed: int, segment_end: int, capacities: Sequence[int]) -> list[int]:
        """work() for each capacity."""
        if not self.blocks:
            rest = segment_end - consumed
            return [min(capacity, rest) for capacity in capacities]
        return [self.work(consumed, segment_end, capacity) for capacity in capacities]


def outside_blocks(blocks: Sequence[Span], end: int) -> int:
    """`end`, or the start of the block that it lies strictly inside."""
    index = bisect.bisect_left(blocks, (end, 0)) - 1
    if index >= 0 and end < blocks[index][1]:
        return blocks[index][0]
    return end


def joined_blocks(spec: RequestSpec) -> tuple[Span, ...]:
    """Atomic spans and images of the request, overlapping ones joined; touching ones stay apart."""
    spans = sorted([*spec.atomic_spans, *((image.first_token, image.end_token) for image in spec.images)])
    joined: list[Span] = []
    for first, end in spans:
        if joined and first < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return tuple(joined)


def image_windows(images: Iterable[ImageSpan], cached_tokens: int, feature_rows: int) -> tuple[Window, ...]:
    """Greedily, in prompt order, as many whole images as `feature_rows` holds; 0: all in one window.

    Images wholly inside the cached prefix need no features any more.
    """
    windows: list[Window] = []
    used = 0
    for image in images:
        if image.end_token <= cached_tokens:
            continue
        if windows and (feature_rows == 0 or used + image.feature_rows <= feature_rows):
            windows[-1] = Window(windows[-1].first_token, windows[-1].images + 1)
            used += image.feature_rows
        else:
            windows.append(Window(image.first_token, 1))
            used = image.feature_rows
    return tuple(windows)
