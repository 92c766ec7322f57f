"""Columns and rows of the table under the timeline."""

from __future__ import annotations

from typing import Any

from dashboard.figures.timeline import group_colour
from dashboard.formatting import shape_words, utc_clock, words
from dashboard.glossary import TERMS
from dashboard.grids import number, text
from dashboard.routing import plan_path
from dashboard.score import Row

TABLE_ROWS = 500

# The page is 1,230 px wide on a screen of 1,280 px; what people look for first fits into that.
COLUMNS = [
    text("committed_clock", "Committed", width=112, tooltip="UTC time of the decision", cellClass="digits"),
    text("plan", "Plan", width=72, cellRenderer="PlanLink", cellClass="digits", tooltip="Fence; opens the plan"),
    text("shape", "Graph", width=136, cellRenderer="KindCell"),
    text("reason", "Reason", width=96),
    text("outcome", "Outcome", width=98),
    number("selected_cost_ms", "Predicted", "milliseconds", width=92, tooltip="Duration that the decision used"),
    number("device_ms", "Observed", "milliseconds", width=92, tooltip="Duration on the device"),
    number("prompt_tokens", "Prompt", "count", width=76, tooltip="Prompt tokens consumed"),
    number("output_tokens", "Output", "count", width=76, tooltip="Output tokens committed"),
    number("active_rows", "Rows", "count", width=62, tooltip="Request rows in use"),
    number("queue_depth", "Queue", "count", width=72, tooltip="Plans submitted before it and not completed"),
    number("policy_version", "Policy", "count", width=70, tooltip="Policy version in force"),
    number("value_rate", "Score", width=78, tooltip="Value per ms, or undivided value of an unmeasured graph"),
    number("margin", "Margin", "margin", width=84, tooltip=TERMS["Margin"]),
    text("score_unit", "Unit", width=92, tooltip="Of score and margin"),
]


def table_row(row: Row, by: str) -> dict[str, Any]:
    """One row of the table, for a row of `plans`; `by`: kind or reason, for its dot's colour."""
    return {
        "id": f"{row['run_id']}/{row['fence']}",
        "committed_clock": utc_clock(row["committed_at"]),
        "plan": str(row["fence"]),
        "href": plan_path(row["run_id"], row["fence"]),
        "shape": shape_words(row),
        "colour": group_colour(by)(row[by]),
        "reason": words(row["reason"]),
        "selected_cost_ms": None if row["cost_state"] == "unknown" else row["selected_cost_ms"],
        "device_ms": row["device_ms"],
        "value_rate": row["value_rate"],
        "score_unit": "per ms" if row["score_kind"] == "rate" else "undivided",
        "margin": row["margin"],
        "active_rows": row["active_rows"],
        "prompt_tokens": row["prompt_tokens"],
        "output_tokens": row["output_tokens"],
        "queue_depth": row["queue_depth"],
        "policy_version": row["policy_version"],
        "outcome": words(row["outcome"]),
    }
