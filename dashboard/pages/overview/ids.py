"""Component ids of the overview."""

from __future__ import annotations

TICK = "overview-tick"
ASK = "overview-ask"
BUSY = "overview-busy"
LIVE = "overview-live"
VERDICT = "overview-verdict"
TILES = "overview-tiles"
PROBLEM = "overview-problem"

TREND_TICK = "overview-trend-tick"
TREND_ASK = "overview-trend-ask"
TREND_BUSY = "overview-trend-busy"
SPAN = "overview-span"
ZOOM = "overview-zoom"
TOKENS = "overview-tokens"
FIRST_TOKEN = "overview-first-token"
BETWEEN = "overview-between"
DEVICE = "overview-device"
TREND_WORDS = "overview-trend-words"
DETAILS = "overview-details"


def words(chart: str) -> str:
    """The id of the sentence above a chart, which says its numbers."""
    return f"{chart}-words"


def legend(chart: str) -> str:
    """The id of what a chart's colours mean."""
    return f"{chart}-legend"
