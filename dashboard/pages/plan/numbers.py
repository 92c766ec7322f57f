"""Every stored number of one plan, grouped and written out."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.formatting import (
    NOTHING,
    against_prediction,
    age,
    count,
    microseconds,
    milliseconds,
    predicted,
    quantity,
    score,
    utc,
    utc_clock,
    words,
)
from dashboard.score import Row, is_rate
from dashboard.sentences import margin_words, recorded_words

Pairs = list[tuple[str, str]]
LEDGER_COLUMNS = (
    *("timing_credit_ms", "timing_spent_ms", "timing_ordinary_ms", "exploration_credit_ms"),
    *("acceptance_credit_ms", "acceptance_spent_ms", "acceptance_ordinary_ms"),
)


def number_groups(plan: Row, alternatives: Sequence[Row]) -> list[tuple[str, Pairs]]:
    """(heading, [(name, value)]) for a `plans` row."""
    return [
        ("Graph", _graph(plan)),
        ("Duration", _duration(plan)),
        ("Decision", _decision(plan, alternatives)),
        ("Work done", _work(plan)),
        ("Exploration ledgers", _ledgers(plan)),
    ]


def _graph(plan: Row) -> Pairs:
    return [
        ("Kind", words(plan["kind"])),
        ("B: request rows", count(plan["batch_capacity"])),
        ("D: draft depth", count(plan["draft_depth"])),
        ("W: rows per lane", count(plan["target_width"])),
        ("P: verification rows", count(plan["target_rows"])),
        ("Prefill capacity", f"{count(plan['prefill_capacity'])} tokens" if plan["prefill_capacity"] else NOTHING),
        ("R: prompt rows", count(plan["prompt_rows"])),
        ("Active rows", count(plan["active_rows"])),
        ("Active decoders", count(plan["active_decoders"])),
        ("Logical token rows", count(plan["logical_rows"])),
        ("Frame slot", count(plan["frame_slot"])),
    ]


def _duration(plan: Row) -> Pairs:
    return [
        ("Predicted", predicted(plan["selected_cost_ms"], plan["cost_state"])),
        ("Estimate", {"unknown": "never measured", "fresh": "fresh", "stale": "stale"}.get(plan["cost_state"], "")),
        ("Last measured before", _measured_before(plan["observation_age_ms"])),
        ("Observed on the device", milliseconds(plan["device_ms"])),
        ("Compared", against_prediction(plan["device_ms"], plan["selected_cost_ms"], plan["cost_state"])),
        ("Wall time", milliseconds(plan["wall_ms"])),
        ("Delivery delay inside", milliseconds(plan["exposed_delivery_ms"])),
        ("Committed", utc(plan["committed_at"])),
        ("Completed", utc_clock(plan["completed_at"])),
        ("Outcome", words(plan["outcome"])),
    ]


def _decision(plan: Row, alternatives: Sequence[Row]) -> Pairs:
    horizon = milliseconds(plan["score_horizon_ms"]) if is_rate(plan) else "none: the duration was unknown"
    following = plan["following_shape"] or "none"
    return [
        ("Reason", words(plan["reason"])),
        ("Score", score(plan)),
        ("Score horizon", horizon),
        ("Margin", margin_words(plan)),
        ("Candidates compared", f"{count(plan['candidates'])}; {recorded_words(plan, alternatives)}"),
        ("Following graph", following),
        ("Plans submitted before it", count(plan["queue_depth"])),
        ("Policy version", count(plan["policy_version"])),
        ("Time to decide", microseconds(plan["plan_us"])),
        ("Common scale, ln", quantity(plan["log_scale"])),
    ]


def _measured_before(age_ms: float | None) -> str:
    if age_ms is None:
        return "never"
    return "just now" if age_ms < 1 else f"{age(age_ms)} earlier"


def _work(plan: Row) -> Pairs:
    return [
        ("Prompt tokens", count(plan["prompt_tokens"])),
        ("Output tokens", count(plan["output_tokens"])),
        ("Offered tokens", count(plan["offered_tokens"])),
        ("Draft tokens", count(plan["draft_tokens"])),
        ("Accepted tokens", count(plan["accepted_tokens"])),
        ("Deliveries", count(plan["deliveries"])),
    ]


def _ledgers(plan: Row) -> Pairs:
    discovery = ("Discovery so far", milliseconds(plan["discovery_ms"]))
    if not any(plan[column] for column in LEDGER_COLUMNS):
        return [("Balances", "no exploration ledgers yet"), *([discovery] if plan["discovery_ms"] else [])]
    return [
        ("Timing: credit", milliseconds(plan["timing_credit_ms"])),
        ("Timing: spent", milliseconds(plan["timing_spent_ms"])),
        ("Timing: ordinary time", milliseconds(plan["timing_ordinary_ms"])),
        ("Acceptance: credit", milliseconds(plan["acceptance_credit_ms"])),
        ("Acceptance: spent", milliseconds(plan["acceptance_spent_ms"])),
        ("Acceptance: ordinary time", milliseconds(plan["acceptance_ordinary_ms"])),
        discovery,
        ("Credit used by this plan", milliseconds(plan["exploration_credit_ms"])),
    ]
