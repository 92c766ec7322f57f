"""Arithmetic on recorded scores, shared by figures, tables and sentences. Rows are mappings with SQL column names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One part of a score: its SQL column, a heading, and the clause that says that a winner was ahead in it.

    `any_sign`: it may add to a score or take from it; a cost is recorded as a size and taken away.
    """

    column: str
    heading: str
    ahead: str
    any_sign: bool = False


PARTS: tuple[Part, ...] = (
    Part("token_value", "Tokens", "its tokens were worth more"),
    Part("delivery_value", "Deliveries", "its deliveries to streams were worth more"),
    Part("age_relief", "Age relief", "ending the wait of its streams was worth more"),
    Part("terminal_relief", "Retirement", "retiring finished requests was worth more"),
    Part("prompt_wait_relief", "Prompt waits", "what it spares waiting prompts was worth more", any_sign=True),
    Part("decode_late_relief", "Late gaps", "it does better by gaps between outputs that are late", any_sign=True),
    Part("wait_cost", "Wait cost", "the waiting it causes costs less"),
)
GAINS: tuple[Part, ...] = PARTS[:-1]
"""All but the wait cost: what is divided by the horizon."""


def is_rate(row: Row) -> bool:
    """Whether the score is value per ms of a known duration; otherwise it is undivided work."""
    return bool(row["score_kind"] == "rate")


def signed_parts(row: Row) -> dict[str, float]:
    """The parts so that they add up to the score: per ms with a negative wait cost, or undivided without one.

    Unit: value per ms where the score is a rate, value where it is work.
    """
    horizon_ms = row["score_horizon_ms"]
    if not is_rate(row) or not horizon_ms:
        return {part.column: float(row[part.column]) for part in GAINS} | {"wait_cost": 0.0}
    parts = {part.column: row[part.column] / horizon_ms for part in GAINS}
    return parts | {"wait_cost": -float(row["wait_cost"])}


def comparable(plan: Row, alternatives: Iterable[Row]) -> list[Row]:
    """The alternatives that were free to run and are scored in the plan's own unit, best first."""
    free = [row for row in alternatives if row["barred_by"] == "none" and row["score_kind"] == plan["score_kind"]]
    return sorted(free, key=lambda row: -row["value_rate"])


def margin_is_ratio(score: float, margin: float) -> bool:
    """Whether a margin reads well as a ratio: both scores lie above zero; else the difference in value does."""
    return score > 0 and margin <= 1


def decisive_part(winner: Row, loser: Row) -> Part | None:
    """The part in which `loser` fell furthest behind `winner`; None when it was behind in no part."""
    ours, theirs = signed_parts(winner), signed_parts(loser)
    best = max(PARTS, key=lambda part: ours[part.column] - theirs[part.column])
    return best if ours[best.column] > theirs[best.column] else None


def is_tie(winner: Row, loser: Row) -> bool:
    """Whether both have exactly the same score, so that the tie rules decided."""
    return bool(winner["value_rate"] == loser["value_rate"])


def bars(plan: Row, alternatives: Sequence[Row]) -> list[Row]:
    """The winner and then the alternatives with a score in the same unit, barred ones included, as recorded."""
    return [plan, *(row for row in alternatives if row["score_kind"] == plan["score_kind"])]
