"""Whether two checkpoints describe the same state, in everything that a decision can depend on.

A publication that nobody looked at before its request ended leaves its mark or not, depending on how often plan() was
called, which the log does not tell. Nothing reads such marks, so they are left out of the comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler import layout, replay
from scheduler.catalog import Catalog

_MARKS = ("last_visible_ns", "delivery_memory", "view_visible_ns", "view_delivery_memory", "view_token_memory")
_NAMED: dict[str, Any] = {
    "works": np.int64,
    "slots": layout.SLOT,
    "frames": layout.FRAME,
    "lanes": layout.LANE,
    "participants": layout.PARTICIPANT,
}


def state_difference(replayed: bytes, recorded: bytes) -> str | None:
    """The first thing in which two checkpoints of one catalog differ, in words; None when there is none.

    Raises InvalidCheckpoint.
    """
    if replayed == recorded:
        return None
    one, two = (replay.decode(data, Catalog(replay.shapes_in(data))) for data in (replayed, recorded))
    for name in one.__struct_fields__:
        if name == "arrays":
            continue
        mine, theirs = getattr(one, name), getattr(two, name)
        if mine != theirs:
            return f"{name}: {mine!r} replayed, {theirs!r} recorded"
    arrays = [_arrays(saved.arrays) for saved in (one, two)]
    return next(filter(None, (_difference(name, arrays[0][name], arrays[1][name]) for name in arrays[0])), None)


def _arrays(held: dict[str, bytes]) -> dict[str, Any]:
    """The arrays, without what nobody reads any more."""
    arrays: dict[str, Any] = {
        name: np.frombuffer(data, _NAMED.get(name, np.float64)).copy() for name, data in held.items()
    }
    slots = arrays["slots"]
    dead = (slots["stage"] == layout.FREE) | (slots["cancelled"] == 1)
    for name in _MARKS:
        slots[name][dead] = 0
    taking_part = arrays["participants"].reshape(-1, len(slots))
    for row in taking_part:
        gone = dead | (row["generation"] != slots["generation"])
        for name in ("unpublished", "open"):
            row[name][gone] = 0
    return arrays


def _difference(name: str, one: Any, two: Any) -> str | None:
    if one.tobytes() == two.tobytes():
        return None
    for field in one.dtype.names or (None,):
        mine, theirs = (one, two) if field is None else (one[field], two[field])
        for place, (left, right) in enumerate(zip(mine.tolist(), theirs.tolist(), strict=True)):
            if repr(left) != repr(right):
                what = name if field is None else f"{name}.{field}"
                return f"{what}[{place}]: {left!r} replayed, {right!r} recorded"
    return f"{name} differ"
