"""How long the plan was expected to take and how long it took, as bars with their numbers."""

from __future__ import annotations

from typing import Any

from dash import html

from dashboard.formatting import against_prediction, milliseconds, predicted, words
from dashboard.palette import PART_COLOURS, kind_colour
from dashboard.score import Row

PREDICTED_COLOUR = "#8089e0"
HOST_COLOUR = "#98a1ab"
DELIVERY_COLOUR = PART_COLOURS["delivery_value"]


def duration_meters(plan: Row) -> list[Any]:
    """Predicted, observed and wall time on one scale, and what the comparison says."""
    known = plan["cost_state"] != "unknown"
    meters = [
        ("Predicted", plan["selected_cost_ms"] if known else None, PREDICTED_COLOUR),
        ("Observed on the device", plan["device_ms"], kind_colour(plan["kind"])),
        ("of it delivery to the host", plan["exposed_delivery_ms"] or None, DELIVERY_COLOUR),
        ("Wall time", plan["wall_ms"], HOST_COLOUR),
    ]
    longest = max((value for _, value, _ in meters if value), default=0.0)
    rows = [_meter(name, value, colour, longest) for name, value, colour in meters if value is not None]
    return [html.P(_words(plan), className="table-note"), html.Div(rows, className="plan-meters")]


def _meter(name: str, value: float, colour: str, longest: float) -> Any:
    share = 100 * value / longest if longest else 0.0
    fill = html.Div(className="fill", style={"width": f"{share:.1f}%", "background": colour})
    return html.Div(
        [html.Span(name), html.Div(fill, className="track"), html.Span(milliseconds(value), className="value")],
        className="plan-meter",
    )


def _words(plan: Row) -> str:
    foreseen = predicted(plan["selected_cost_ms"], plan["cost_state"])
    if plan["device_ms"] is None:
        return f"Predicted: {foreseen}. Its end was not observed: it is {words(plan['outcome'])}."
    compared = against_prediction(plan["device_ms"], plan["selected_cost_ms"], plan["cost_state"])
    if plan["cost_state"] == "unknown":
        return "The graph had never been measured, so nothing was predicted; this plan measured it."
    stale = ", from a stale estimate" if plan["cost_state"] == "stale" else ""
    return f"{foreseen} were predicted{stale}; the device took {milliseconds(plan['device_ms'])}: {compared}."
