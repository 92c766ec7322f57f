"""Sums over what was learned: acceptance by depth, forecasts against what was verified, and the bound. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from dashboard.score import Row
from scheduler.ledgers import ACCEPTANCE_DENOMINATOR, CAP_NS, TIMING_DENOMINATOR

FULL_MS = CAP_NS / 1e6
"""The credit at which a ledger may pay for a probe."""
DENOMINATORS = {"timing": TIMING_DENOMINATOR, "acceptance": ACCEPTANCE_DENOMINATOR}


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """What a ledger has spent and what it may have: its share of ordinary time and one probe on credit."""

    ledger: str
    credit_ms: float
    spent_ms: float
    ordinary_ms: float
    largest_ms: float

    @property
    def share_ms(self) -> float:
        """The share of the ordinary time."""
        return self.ordinary_ms / DENOMINATORS[self.ledger]

    @property
    def allowed_ms(self) -> float:
        """The most that can have been spent: the share, and the largest probe that is known."""
        return self.share_ms + self.largest_ms

    @property
    def used(self) -> float:
        """How much of it is spent, 0 where nothing may be."""
        return self.spent_ms / self.allowed_ms if self.allowed_ms else 0.0


def bounds(newest: Row | None, episodes: Sequence[Row]) -> list[Bound]:
    """The bound of each ledger as of the newest plan."""
    if newest is None:
        return []
    return [
        Bound(
            ledger,
            newest[f"{ledger}_credit_ms"],
            newest[f"{ledger}_spent_ms"],
            newest[f"{ledger}_ordinary_ms"],
            max((row["charged_ms"] or 0.0 for row in episodes if row["ledger"] == ledger), default=0.0),
        )
        for ledger in DENOMINATORS
    ]


def by_depth(rounds: Sequence[Row]) -> list[Row]:
    """For each `source` and `depth`: `offered`, lanes that verified so many drafts, and `accepted`, those right so far.

    A draft counts as accepted when all before it were right too, so the share falls with the depth.
    """
    rows: list[Row] = []
    for source in sorted({row["source"] for row in rounds}):
        own = [row for row in rounds if row["source"] == source]
        for depth in range(1, max(row["offered"] for row in own) + 1):
            offered = sum(row["lanes"] for row in own if row["offered"] >= depth)
            accepted = sum(row["lanes"] for row in own if row["offered"] >= depth and row["accepted"] >= depth)
            rows.append({"source": source, "depth": depth, "offered": offered, "accepted": accepted})
    return rows


def reliability(rounds: Sequence[Row]) -> list[Row]:
    """For each `source` and `bin` of the forecast: mean `forecast` and `accepted` share of a lane, and `lanes`."""
    rows: list[Row] = []
    for source, bin_ in sorted({(row["source"], row["bin"]) for row in rounds}):
        own = [row for row in rounds if (row["source"], row["bin"]) == (source, bin_)]
        lanes = sum(row["lanes"] for row in own)
        forecast = sum(row["forecast"] for row in own) / lanes
        accepted = sum(row["lanes"] * row["accepted"] / row["offered"] for row in own) / lanes
        rows.append({"source": source, "bin": bin_, "forecast": forecast, "accepted": accepted, "lanes": lanes})
    return rows


def corrections(episodes: Sequence[Row]) -> list[float]:
    """How far each refreshed estimate was off, as |observed / predicted - 1|, largest first."""
    found = [
        abs((row["device_ms"] - (row["exposed_delivery_ms"] or 0.0)) / row["selected_cost_ms"] - 1)
        for row in episodes
        if row["ledger"] == "timing" and row["outcome"] == "completed" and row["selected_cost_ms"] and row["device_ms"]
    ]
    return sorted(found, reverse=True)


def middle(values: Sequence[float]) -> float:
    """The median of at least one value."""
    return statistics.median(values)
