"""Fewer points with the same extremes: what a chart of thousands of observations shows."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.score import Row


def keep_extremes(rows: Sequence[Row], bins: int) -> list[Row]:
    """At most 2 * `bins` of the rows, in their order: of each of `bins` equal runs the smallest and the largest.

    Rows have `least_ms` (or None) and `most_ms`. Up to 2 * `bins` rows stay as they are; the smallest and the largest
    of all are always among what is kept.
    """
    if len(rows) <= 2 * bins:
        return list(rows)
    kept: list[Row] = []
    for number in range(bins):
        some = range(number * len(rows) // bins, (number + 1) * len(rows) // bins)
        most = max(some, key=lambda index: rows[index]["most_ms"])
        least = min(some, key=lambda index: _least(rows[index]))
        kept += [rows[index] for index in sorted({least, most})]
    return kept


def _least(row: Row) -> float:
    return float(row["most_ms"] if row["least_ms"] is None else row["least_ms"])
