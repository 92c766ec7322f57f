"""The obvious twin of gpu/allocation: row after row to the best draft that some lane could verify next."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.device import InvalidFrame


def allocate_rows(
    joint: Sequence[Sequence[float]], limits: Sequence[int], slots: Sequence[int], target_rows: int
) -> list[int]:
    """The target rows of each lane: one for its pending token, then one for each draft that it may verify.

    `joint` [lanes][depths]: probability that all drafts up to a depth are accepted; NaN counts as 0. `limits`
    [lanes]: most rows of a lane, its pending token's included; 0 for an inactive lane, which gets none. `slots`
    [lanes]: request slots, different for active lanes. The next row goes to the likeliest next draft; ties go to the
    shorter prefix, then to the lower slot. Raises InvalidFrame when `target_rows` does not hold every active lane's
    pending token.
    """
    scores = [_running_minimum(lane) for lane in joint]
    rows = [1 if limit > 0 else 0 for limit in limits]
    left = target_rows - sum(rows)
    if left < 0:
        raise InvalidFrame(f"{sum(rows)} active lanes need a row each; there are {target_rows} target rows")
    for _ in range(left):
        frontier = [
            (-scores[lane][row - 1], row, slots[lane], lane)
            for lane, row in enumerate(rows)
            if 0 < row < min(limits[lane], len(scores[lane]) + 1)
        ]
        if not frontier:
            break
        _, _, _, best = min(frontier)
        rows[best] += 1
    return rows


def _running_minimum(scores: Sequence[float]) -> list[float]:
    """A longer prefix is never likelier than a shorter one, whatever rounding made of it; NaN counts as 0."""
    falling: list[float] = []
    for score in scores:
        probability = score if score > 0 else 0.0
        falling.append(min(falling[-1], probability) if falling else probability)
    return falling
