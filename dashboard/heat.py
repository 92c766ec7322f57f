"""The catalog as maps: graphs in rows by B and in columns by W or prompt capacity, one map for each kind and depth."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from dashboard.formatting import capital, words
from dashboard.score import Row

STEPS = 7
"""Shades of a map, from the shortest to the longest estimate, by its logarithm."""


@dataclasses.dataclass(frozen=True, slots=True)
class HeatMap:
    """`cells[b, column]` are the graphs of one place, more than one where they differ in their rows P or allocation."""

    title: str
    column_heading: str
    batches: list[int]
    columns: list[int]
    cells: dict[tuple[int, int], list[Row]]

    def shade(self, row: Row) -> int:
        """From 1 to STEPS; 0 for a graph without an estimate."""
        return shade(row["estimate_ms"], *self.range_ms)

    @property
    def range_ms(self) -> tuple[float, float]:
        """The shortest and the longest estimate, (0, 0) without any."""
        known = [row["estimate_ms"] for rows in self.cells.values() for row in rows if row["estimate_ms"]]
        return (min(known), max(known)) if known else (0.0, 0.0)


def shade(estimate_ms: float | None, least_ms: float, most_ms: float) -> int:
    """The step of an estimate between the least and the most, by its logarithm."""
    if not estimate_ms:
        return 0
    if most_ms <= least_ms:
        return (STEPS + 1) // 2
    place = math.log(estimate_ms / least_ms) / math.log(most_ms / least_ms)
    return 1 + min(STEPS - 1, max(0, round(place * (STEPS - 1))))


def heat_maps(rows: Sequence[Row]) -> list[HeatMap]:
    """One map for each kind, draft depth and width that belong together, in the order of the rows."""
    rounds = [row for row in rows if row["kind"] == "speculative"]
    widths = {(row["draft_depth"], row["target_width"]) for row in rounds}
    # Where each depth has one width, a map for each would be a single column: they stand side by side in one map.
    by_depth = len({depth for depth, _ in widths}) == len(widths)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_title(row, by_depth), []).append(row)
    return [_map(title, members, by_depth) for title, members in groups.items()]


def _title(row: Row, by_depth: bool) -> str:
    kind = row["kind"]
    text = capital(words(kind))
    if kind == "speculative" and not by_depth:
        return f"{text}, draft depth {row['draft_depth']}"
    if kind == "mixed":
        prompts = f", {row['prompt_rows']} prompts" if row["prompt_rows"] > 1 else ""
        return f"{text}, draft depth {row['draft_depth']}, W {row['target_width']}{prompts}"
    return text


def _map(title: str, rows: Sequence[Row], by_depth: bool) -> HeatMap:
    name, heading = "target_width", "W: rows per request"
    if rows[0]["prefill_capacity"] > 0:
        name, heading = "prefill_capacity", "Prompt tokens"
    elif rows[0]["kind"] == "speculative" and by_depth:
        name, heading = "draft_depth", "D: draft depth"
    cells: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["batch_capacity"], row[name]), []).append(row)
    return HeatMap(
        title=title,
        column_heading=heading,
        batches=sorted({batch for batch, _ in cells}),
        columns=sorted({column for _, column in cells}),
        cells=cells,
    )
