"""An explanation as text: the decision in words and numbers, for a terminal or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.formatting import against_prediction, age, milliseconds, predicted, quantity, shape_words, utc, words
from dashboard.score import GAINS, is_rate
from dashboard.sentences import BARRED_WORDS, OUTCOME_WORDS, headline, how_it_lost, margin_words, recorded_words
from service.why.explanation import DIFFERENT, SAME, Explanation, Replay

Row = Mapping[str, Any]
_MOST_DIFFERENCES = 12


def explained(found: Explanation) -> list[str]:
    """Every line."""
    plan, others = found.plan, found.alternatives
    policy = f"policy version {plan['policy_version']}" + (f" ({found.policy})" if found.policy else "")
    return [
        f"{found.run_id}/{found.fence}  {shape_words(plan)}  {words(plan['reason'])}  "
        f"{utc(plan['committed_at'])}  {policy}",
        headline(plan, others),
        "",
        *_score(plan, others),
        "",
        *_runners_up(plan, others),
        *_lanes(found.lanes),
        "",
        *_ledgers(found),
        "",
        *_duration(plan),
        "",
        *replay_lines(found.replay),
    ]


def replay_lines(replay: Replay) -> list[str]:
    """Whether the decision came out the same."""
    if replay.result == SAME:
        return [
            f"Re-executed: the same, bit for bit (shape, lanes, score, runner-ups), from the checkpoint behind fence "
            f"{replay.from_fence}, {replay.plans} decisions replayed.{_versions(replay)}"
        ]
    if replay.result == DIFFERENT:
        more = len(replay.differences) - _MOST_DIFFERENCES
        return [
            f"Re-executed: IT CAME OUT DIFFERENTLY, from the checkpoint behind fence {replay.from_fence}."
            + _versions(replay),
            *(f"  {line}" for line in replay.differences[:_MOST_DIFFERENCES]),
            *([f"  and {more} more"] if more > 0 else []),
        ]
    return [f"Not re-executed: {replay.why}.{_versions(replay)}"]


def _versions(replay: Replay) -> str:
    if replay.recorded_by in (None, replay.replayed_by):
        return ""
    text = f" Recorded by version {replay.recorded_by}, replayed by {replay.replayed_by}"
    return text + ("." if replay.result == SAME else ": another version may decide differently.")


def _score(plan: Row, others: Sequence[Row]) -> list[str]:
    parts = _gains(plan)
    if is_rate(plan):
        horizon = milliseconds(plan["score_horizon_ms"])
        sum_ = f"({parts}) / {horizon} - {quantity(plan['wait_cost'])} wait cost"
        text = f"Score: {plan['value_rate']!r} per ms = {sum_}"
    else:
        text = f"Score: {plan['value_rate']!r}, undivided since the duration was unknown = {parts}"
    lines = [f"{text}; log of the common scale {plan['log_scale']!r}"]
    if plan["following_shape"]:
        lines.append(f"Scored together with {plan['following_shape']}, which it makes possible.")
    lines.append(f"Ahead of the next by: {margin_words(plan)}; {recorded_words(plan, others)}.")
    return lines


def _gains(plan: Row) -> str:
    """`120 tokens + 3.10 deliveries - 0.42 late gaps`; without those parts that no preference asks for."""
    text = ""
    for part in GAINS:
        value = plan[part.column]
        if not value and part.any_sign:
            continue
        sign = ("-" if value < 0 else "") if not text else (" - " if value < 0 else " + ")
        text += f"{sign}{quantity(abs(value))} {part.heading.lower()}"
    return text


def _runners_up(plan: Row, others: Sequence[Row]) -> list[str]:
    if not others:
        return ["Runner-ups: none", ""]
    rows = [
        (
            str(other["rank"]),
            shape_words(other),
            f"{quantity(other['value_rate'])}{' per ms' if is_rate(other) else ' undivided'}",
            predicted(other["selected_cost_ms"], other["cost_state"]),
            str(other["active_rows"]),
            _barred(other["barred_by"]),
            how_it_lost(plan, other),
        )
        for other in others
    ]
    return ["Runner-ups", *_table(("rank", "shape", "score", "cost", "requests", "barred", "lost by"), rows), ""]


def _barred(by: str) -> str:
    return "" if by == "none" else BARRED_WORDS.get(by, by)


def _lanes(lanes: Sequence[Row]) -> list[str]:
    rows = [
        (
            str(lane["lane"]),
            lane["request_id"],
            lane["role"],
            str(lane["prompt_tokens"]),
            str(lane["query_length"]),
            quantity(lane["expected_tokens"]),
            lane["proposal_source"] or "-",
            quantity(lane["token_price"]),
            quantity(lane["delivery_price"]),
            age(lane["age_ms"]),
            milliseconds(lane["sigma_ms"]),
            quantity(lane["lane_value"]),
            str(lane["committed_tokens"]),
        )
        for lane in lanes
    ]
    heads = ("lane", "request", "role", "prompt", "rows", "expected", "drafts", "token price", "delivery price")
    return ["Lanes", *_table((*heads, "age", "sigma", "value", "committed"), rows)]


def _ledgers(found: Explanation) -> list[str]:
    before, after = found.ledgers_before, found.ledgers_after
    rows = [
        (words(name.removesuffix("_ms")), repr(value), "?" if after is None else repr(after[name]))
        for name, value in before.items()
    ]
    note = "" if after is not None else "; what it left behind is only known from a replay through its completion"
    return [
        f"Ledgers in ms, when it was decided and behind its completion{note}",
        *_table(("", "before", "after"), rows),
    ]


def _duration(plan: Row) -> list[str]:
    cost, state = plan["selected_cost_ms"], plan["cost_state"]
    last = plan["observation_age_ms"]
    measured = "" if last is None else f", last measured {age(last)} before"
    text = f"Duration: predicted {predicted(cost, state)} ({state}{measured})"
    if state == "unknown":
        text = "Duration: no prediction, as the graph was never measured"
    if plan["device_ms"] is None:
        return [f"{text}. {OUTCOME_WORDS.get(plan['outcome'], plan['outcome'])}"]
    against = "" if state == "unknown" else f"; {against_prediction(plan['device_ms'], cost, state)}"
    observed = f"observed {milliseconds(plan['device_ms'])} on the device, {milliseconds(plan['wall_ms'])} in all"
    outcome = OUTCOME_WORDS.get(plan["outcome"], plan["outcome"])
    return [f"{text}; {observed}{against}. {outcome}".rstrip()]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows))
    return [f"  {line.rstrip()}" for line in lines]
