"""The component ids of the timeline page; assets/timeline.js and timeline.css use the same."""

from __future__ import annotations

QUERY = "timeline-query"
STATE = "timeline-state"
TICK = "timeline-tick"
ASK = "timeline-ask"
BUSY = "timeline-busy"
NOTED = "timeline-noted"
CHOSEN = "timeline-chosen"
OPENED = "timeline-opened"
PAUSED = "timeline-paused"
LIVE = "timeline-live"
BY = "timeline-by"
SPANS = "timeline-spans"
GRAPH = "timeline-graph"
FRAME = "timeline-frame"
SHOWN = "timeline-shown"
LEGEND = "timeline-legend"
EVENTS = "timeline-events"
NOTES = "timeline-filter-note"
FILTERS = "timeline-filters"
TABLE_TITLE = "timeline-table-title"
GRID = "timeline-grid"
BODY = "timeline-body"
EMPTY = "timeline-empty"
PROBLEM = "timeline-problem"
CURL = "timeline-curl"
MINUTE = "timeline-minute"

FILTER_FIELDS = ("kind", "reason", "outcome", "policy", "run", "request")


def filter_field(name: str) -> str:
    """The id of one filter's input."""
    return f"timeline-filter-{name}"
