"""The colours that carry meaning, each with at least 3:1 contrast on the light and on the dark page."""

from __future__ import annotations

KIND_COLOURS: dict[str, str] = {
    "prefill": "#3b7ddd",
    "scored_prefill": "#5f8fb8",
    "decode": "#17916b",
    "speculative": "#a45fd0",
    "mixed": "#d0702c",
    "init": "#808894",
    "restore": "#8a7f5c",
    "snapshot": "#b0752f",
    "terminal_snapshot": "#c25b7f",
    "vision": "#2f93a8",
}
UNKNOWN_KIND_COLOUR = "#808894"

PART_COLOURS: dict[str, str] = {
    "token_value": "#6478e0",
    "delivery_value": "#2795a5",
    "age_relief": "#b5831d",
    "terminal_relief": "#9a74c9",
    "prompt_wait_relief": "#4f9d58",
    "decode_late_relief": "#c45a9b",
    "wait_cost": "#d9534f",
}

SERIES_COLOURS: dict[str, str] = {"p50": "#3b7ddd", "p99": "#d0702c", "tokens": "#17916b", "change": "#8089e0"}


def kind_colour(kind: str) -> str:
    """The colour of a graph kind, grey for one that this version does not know."""
    return KIND_COLOURS.get(kind, UNKNOWN_KIND_COLOUR)
