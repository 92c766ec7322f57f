"""What a process updates: counters, gauges and histograms in the slots of its metrics file.

A traced histogram also keeps one exemplar for each of its buckets: the trace of an observation that fell into it, so
that whoever sees a slow bucket gets to a request or plan that was slow. At most one a second is written for a bucket,
so that exemplars cost next to nothing however many observations there are.
"""

from __future__ import annotations

import bisect
import math
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

EXEMPLAR_WORDS = 5
"""Words of 8 bytes for the exemplar of one bucket: trace id (two), value, Unix time in s, and a check of these."""
EXEMPLAR_NS = 1_000_000_000
"""A bucket's exemplar stays at least so long."""
_EXEMPLAR = struct.Struct("=16sdd")
_WORDS = struct.Struct("=4Q")
_CHECK = 0x9E37_79B9_7F4A_7C15
"""Unlike 0, so that a place that was never written is no exemplar."""


class Counter:
    """A number that only rises."""

    __slots__ = ("_index", "_slots")

    def __init__(self, slots: memoryview[float], index: int) -> None:
        self._slots = slots
        self._index = index

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`; negative, NaN and infinite amounts are ignored, since they would spoil the series for good."""
        if 0.0 <= amount < math.inf:
            self._slots[self._index] += amount


class Gauge:
    """A number that is set."""

    __slots__ = ("_index", "_slots")

    def __init__(self, slots: memoryview[float], index: int) -> None:
        self._slots = slots
        self._index = index

    def set(self, value: float) -> None:
        """Set to `value`; NaN and infinities become 0."""
        self._slots[self._index] = value if -math.inf < value < math.inf else 0.0


class Histogram:
    """Counts per bucket and their sum."""

    __slots__ = ("_bounds", "_index", "_slots", "_sum_index")

    def __init__(self, slots: memoryview[float], index: int, bounds: tuple[float, ...]) -> None:
        self._slots = slots
        self._index = index
        self._bounds = bounds
        self._sum_index = index + len(bounds) + 1

    def observe(self, value: float) -> None:
        """Count `value`; negative, NaN and infinite values are ignored."""
        if 0.0 <= value < math.inf:
            slots = self._slots
            slots[self._index + bisect.bisect_left(self._bounds, value)] += 1.0
            slots[self._sum_index] += value


class TracedHistogram:
    """A histogram with an exemplar for each bucket.

    observe() says whether the bucket's exemplar is due, so that a trace id is only made when it is kept:

        if (bucket := seconds.observe(value, now_ns)) is not None:
            seconds.keep(bucket, value, now_ns, trace_id)
    """

    __slots__ = ("_bounds", "_due_ns", "_first_word", "_index", "_slots", "_sum_index", "_words")

    def __init__(
        self,
        slots: memoryview[float],
        index: int,
        bounds: tuple[float, ...],
        words: memoryview[int],
        first_word: int,
    ) -> None:
        """`words`: the file's exemplars as uint64, those of this series from `first_word` on."""
        self._slots = slots
        self._index = index
        self._bounds = bounds
        self._sum_index = index + len(bounds) + 1
        self._words = words
        self._first_word = first_word
        self._due_ns = [0] * (len(bounds) + 1)

    def observe(self, value: float, now_ns: int) -> int | None:
        """Count `value` as Histogram does; the number of its bucket when that needs an exemplar at `now_ns`."""
        if 0.0 <= value < math.inf:
            slots, bucket = self._slots, bisect.bisect_left(self._bounds, value)
            slots[self._index + bucket] += 1.0
            slots[self._sum_index] += value
            if now_ns >= self._due_ns[bucket]:
                return bucket
        return None

    def keep(self, bucket: int, value: float, now_ns: int, trace_id: bytes) -> None:
        """The observation of `value` belongs to the trace `trace_id` (16 bytes)."""
        self._due_ns[bucket] = now_ns + EXEMPLAR_NS
        words, first = self._words, self._first_word + bucket * EXEMPLAR_WORDS
        # Each store is one aligned move. A reader between two of them sees words that do not fit their check.
        high, low, number, at = _WORDS.unpack(_EXEMPLAR.pack(trace_id, value, time.time()))
        words[first] = high
        words[first + 1] = low
        words[first + 2] = number
        words[first + 3] = at
        words[first + 4] = high ^ low ^ number ^ at ^ _CHECK


class Exemplar(NamedTuple):
    """One observation of a bucket. `trace_id`: 32 hexadecimal digits; `at_s`: Unix time."""

    trace_id: str
    value: float
    at_s: float


def read_exemplar(words: Sequence[int]) -> Exemplar | None:
    """The exemplar in EXEMPLAR_WORDS words; None where there is none yet, or while it is written."""
    high, low, number, at, check = words
    if high ^ low ^ number ^ at ^ _CHECK != check:
        return None
    trace_id, value, at_s = _EXEMPLAR.unpack(_WORDS.pack(high, low, number, at))
    return Exemplar(trace_id.hex(), value, at_s)
