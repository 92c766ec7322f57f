"""Columns and rows of the plan page's two tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dashboard.formatting import shape_words, some_names, words
from dashboard.grids import number, text
from dashboard.palette import kind_colour
from dashboard.score import PARTS, Row, signed_parts
from dashboard.sentences import how_it_lost

LANE_COLUMNS = [
    number("lane", "Lane", "count", width=72),
    text("request_id", "Request", width=250, cellClass="digits"),
    text("role", "Role", width=96),
    number("prompt_tokens", "Prompt", "count", width=88, tooltip="Prompt tokens consumed here"),
    number("expected_tokens", "Expected", "quantity", width=100, tooltip="Expected output tokens"),
    number("committed_tokens", "Committed", "count", width=108, tooltip="Output tokens committed"),
    number("lane_value", "Value", width=96, tooltip="What serving this request was worth in all"),
    number("token_price", "Token price", width=112, tooltip="Added value per token, for fairness"),
    number("delivery_price", "Delivery price", width=124, tooltip="Added value of one visible delivery"),
    number("age_ms", "Age", "milliseconds", width=96, tooltip="Time since its last visible output"),
    number("sigma_ms", "Sigma", "milliseconds", width=96, tooltip="Service time per round that its age is priced with"),
    number("terminal_value", "Terminal", width=100, tooltip="Value of retiring its state"),
]

ALTERNATIVE_COLUMNS = [
    number("rank", "Rank", "count", width=72),
    text("shape", "Graph", width=150, cellRenderer="KindCell"),
    number("value_rate", "Score", width=92),
    text("unit", "Unit", width=94),
    text(
        "lost",
        "Why it did not run",
        width=280,
        flex=1,
        minWidth=220,
        tooltip="The part in which it fell furthest behind",
    ),
    *[number(part.column, part.heading, width=104) for part in PARTS],
    number("selected_cost_ms", "Predicted", "milliseconds"),
    text("cost_state", "Estimate", width=96),
    number("active_rows", "Rows", "count", width=76),
    text("requests", "Requests", width=220, cellClass="digits"),
]


def lane_rows(lanes: Sequence[Row]) -> list[dict[str, Any]]:
    """Table rows for `plan_lanes` rows."""
    fields = [column["field"] for column in LANE_COLUMNS]
    return [{"id": str(lane["lane"]), **{field: lane[field] for field in fields}} for lane in lanes]


def alternative_rows(plan: Row, alternatives: Sequence[Row]) -> list[dict[str, Any]]:
    """Table rows for `plan_alternatives` rows, parts in the unit of each score."""
    return [
        {
            "id": str(row["rank"]),
            "rank": row["rank"],
            "shape": shape_words(row),
            "colour": kind_colour(row["kind"]),
            "value_rate": row["value_rate"],
            "unit": "per ms" if row["score_kind"] == "rate" else "undivided",
            "lost": how_it_lost(plan, row),
            **signed_parts(row),
            "selected_cost_ms": None if row["cost_state"] == "unknown" else row["selected_cost_ms"],
            "cost_state": words(row["cost_state"]),
            "active_rows": row["active_rows"],
            "requests": some_names(_names(row["request_ids"])),
        }
        for row in alternatives
    ]


def _names(value: object) -> list[str]:
    found = json.loads(value) if isinstance(value, str) else value
    return [str(name) for name in found] if isinstance(found, list | tuple) else []
