"""Columns and rows of the plan page's two tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dashboard.formatting import shape_words, some_names, words
from dashboard.glossary import TERMS
from dashboard.grids import number, text
from dashboard.palette import kind_colour
from dashboard.routing import request_path
from dashboard.score import PARTS, Row, signed_parts
from dashboard.sentences import how_it_lost

LANE_COLUMNS = [
    number("lane", "Lane", "count", width=72),
    text("request_id", "Request", width=250, cellRenderer="RequestLink", cellClass="digits", tooltip="Opens its life"),
    text("role", "Role", width=96),
    number("prompt_tokens", "Prompt", "count", width=88, tooltip="Prompt tokens consumed here"),
    number("expected_tokens", "Expected", "quantity", width=100, tooltip="Expected output tokens"),
    number("committed_tokens", "Committed", "count", width=108, tooltip="Output tokens committed"),
    number("lane_value", "Value", width=96, tooltip=TERMS["Lane value"]),
    number("token_price", "Token price", width=112, tooltip=TERMS["Token price"]),
    number("delivery_price", "Delivery price", width=124, tooltip=TERMS["Delivery price"]),
    number("age_ms", "Age", "milliseconds", width=96, tooltip="Time since its last visible output"),
    number("sigma_ms", "Sigma", "milliseconds", width=96, tooltip=TERMS["Sigma"]),
    number("terminal_value", "Terminal", width=100, tooltip=TERMS["Terminal"]),
]

ALTERNATIVE_COLUMNS = [
    text("shape", "Graph", width=150, cellRenderer="KindCell"),
    number("value_rate", "Score", width=92, tooltip=TERMS["Score"]),
    text("unit", "Unit", width=94, tooltip=TERMS["Undivided"]),
    text(
        "lost",
        "Why it did not run",
        width=280,
        flex=1,
        minWidth=300,
        wrapText=True,
        autoHeight=True,
        cellClass="wrapped",
        tooltip="The part in which it fell furthest behind, and its wait cost; or why it could not run",
    ),
    number("rank", "Rank", "count", width=72, tooltip=TERMS["Rank"]),
    *[number(part.column, part.heading, width=116, tooltip=TERMS.get(part.heading)) for part in PARTS],
    number("selected_cost_ms", "Predicted", "milliseconds"),
    text("cost_state", "Estimate", width=96),
    number("active_rows", "Rows", "count", width=76),
    text("requests", "Requests", width=220, cellClass="digits"),
]


def shown_columns(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The columns of the runner-ups, without those parts that no preference asks for."""
    empty = {part.column for part in PARTS if part.any_sign and not any(row[part.column] for row in rows)}
    return [column for column in ALTERNATIVE_COLUMNS if column["field"] not in empty]


def lane_rows(lanes: Sequence[Row]) -> list[dict[str, Any]]:
    """Table rows for `plan_lanes` rows."""
    fields = [column["field"] for column in LANE_COLUMNS]
    return [
        {
            "id": str(lane["lane"]),
            "href": request_path(lane["run_id"], lane["request_id"]),
            **{field: lane[field] for field in fields},
        }
        for lane in lanes
    ]


def alternative_rows(plan: Row, alternatives: Sequence[Row]) -> list[dict[str, Any]]:
    """Table rows for `plan_alternatives` rows, parts in the unit of each score.

    By score, the winner's unit first, since scores in different units are not compared by size.
    """
    by_score = sorted(alternatives, key=lambda row: (row["score_kind"] != plan["score_kind"], -row["value_rate"]))
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
        for row in by_score
    ]


def _names(value: object) -> list[str]:
    found = json.loads(value) if isinstance(value, str) else value
    return [str(name) for name in found] if isinstance(found, list | tuple) else []
