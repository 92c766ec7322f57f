"""Histogram buckets of device time in `plan_minutes`: each counts what lies above the bound before, up to its own."""

from __future__ import annotations

from bisect import bisect_left

DEVICE_BOUNDS_US = (
    *(step * decade for decade in (100, 1_000, 10_000, 100_000, 1_000_000) for step in (1, 1.5, 2, 3, 5, 7)),
    10_000_000,
)
"""Upper bounds in microseconds, included; neighbours differ by at most two thirds."""
DEVICE_BOUNDS_MS = tuple(bound / 1000 for bound in DEVICE_BOUNDS_US)
DEVICE_BUCKETS = (*(f"device_to_{int(bound)}us" for bound in DEVICE_BOUNDS_US), "device_over")
"""The columns, one per bound, and one for what lies above all of them."""


def device_bucket(device_ms: float) -> int:
    """The index in DEVICE_BUCKETS of the bucket that holds `device_ms`."""
    return bisect_left(DEVICE_BOUNDS_MS, device_ms)
