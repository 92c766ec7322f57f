"""A prompt's fixed points: cuts, image windows, atomic blocks, and how far a chunk may go."""

from __future__ import annotations

import dataclasses

from scheduler.records import ImageSpan, RequestSpec


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """`windows`: the images of each window, in prompt order; one empty window without images. `blocks`: atomic spans
    and images as [first, end). `anchor`: the cut of the conversation anchor, None without one; `cuts`: all chosen
    cuts, ascending. `stops`: where prefill stops, ascending, the prompt end last.
    """

    windows: tuple[tuple[ImageSpan, ...], ...]
    blocks: tuple[tuple[int, int], ...]
    anchor: int | None
    cuts: tuple[int, ...]
    stops: tuple[int, ...]

    def segment_end(self, consumed: int) -> int:
        """The first stop above `consumed`; `consumed` itself behind the prompt end."""
        return next((stop for stop in self.stops if stop > consumed), consumed)

    def work(self, consumed: int, capacity: int) -> int:
        """Tokens that a graph of `capacity` consumes: up to a stop, cut back to the start of a block in its way."""
        end = min(consumed + capacity, self.segment_end(consumed))
        while self.blocks:
            starts = [first for first, last in self.blocks if first < end < last]
            if not starts:
                return max(0, end - consumed)
            end = min(starts)
        return max(0, end - consumed)


def image_windows(spec: RequestSpec, feature_rows: int) -> tuple[tuple[ImageSpan, ...], ...]:
    """The images behind the cached prefix, greedily in prompt order as many whole ones as `feature_rows` holds.

    0 feature rows: all in one window.
    """
    windows: list[list[ImageSpan]] = [[]]
    used = 0
    for image in spec.images:
        if image.end_token <= spec.cached_tokens:
            continue
        if feature_rows and windows[-1] and used + image.feature_rows > feature_rows:
            windows.append([])
            used = 0
        windows[-1].append(image)
        used += image.feature_rows
    return tuple(tuple(window) for window in windows)


def window_starts(windows: tuple[tuple[ImageSpan, ...], ...]) -> list[int]:
    """The first token of the first image of each window after the first."""
    return [window[0].first_token for window in windows[1:]]


def atomic_blocks(spec: RequestSpec) -> tuple[tuple[int, int], ...]:
    """Atomic spans and images, ascending."""
    images = [(image.first_token, image.end_token) for image in spec.images]
    return tuple(sorted([*spec.atomic_spans, *images]))


def longest_block(blocks: tuple[tuple[int, int], ...]) -> int:
    """The length of the longest block, those that overlap taken together; 0 without one."""
    longest, first, last = 0, 0, 0
    for start, end in blocks:
        if start < last:
            last = max(last, end)
        else:
            first, last = start, end
        longest = max(longest, last - first)
    return longest


def inside(blocks: tuple[tuple[int, int], ...], position: int) -> bool:
    """Whether `position` divides a block."""
    return any(first < position < last for first, last in blocks)
