"""One decision in plain words. Pure: rows as the store returns them in, text out.

A sentence claims only what the rows show: scores in different units are never compared by size, and a winner with
the lower score is said to have it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.formatting import capital, percent, quantity, shape_words, words
from dashboard.score import Row, comparable, decisive_part, is_rate, is_tie, margin_is_ratio, signed_parts

TIE_RULES = (
    "exact ties go to the shorter duration, then to more requests, then to the least recently served, "
    "then to less padding"
)
BARRED_WORDS = {
    "none": "free to run",
    "pruned": "a smaller graph holds the same requests",
    "unmeasured": "never measured, and a smaller graph takes the same tokens",
    "needs_empty_window": "needs an empty submission queue",
    "frame_slots": "no frame slot was free",
    "pages": "not enough free pages",
    "cadence": "leaves running answers out (cadence)",
    "token_budget": "not what the token budget gives",
    "grammar": "a grammar had to be followed first",
}
OUTCOME_WORDS = {
    "in_flight": "It is still running.",
    "completed": "",
    "failed": "It failed on the device.",
    "abandoned": "It was abandoned: the server stopped while it ran.",
    "lost": "Its end is not known: the engine died while it ran, or the record of its end is missing.",
}


def headline(plan: Row, alternatives: Sequence[Row]) -> str:
    """Why this plan ran, in one to three sentences."""
    reason = plan["reason"]
    if reason == "discovery" or not is_rate(plan):
        return _discovery(plan, alternatives)
    if reason == "timing_refresh":
        return (
            f"{_winner(plan)} was run to measure it again: its last duration had grown old, and the timing-refresh "
            "ledger had saved enough to pay for it."
        )
    if reason == "acceptance_learning":
        return (
            f"{_winner(plan)} was run to learn how often drafts are accepted, and the acceptance-learning ledger "
            "paid for it."
        )
    if reason == "solo_prefill":
        return _solo_prefill(plan, alternatives)
    if reason == "token_budget":
        return _token_budget(plan, alternatives)
    return _ordinary(plan, alternatives)


def _winner(row: Row) -> str:
    return capital(shape_words(row))


def _rival(plan: Row, rival: Row) -> str:
    """The rival's shape; one of the winner's own shape differs in whom it would have served."""
    name = shape_words(rival)
    if name != shape_words(plan):
        return name
    return f"{name} for " + ("another request" if rival["active_rows"] == 1 else "other requests")


def _discovery(plan: Row, alternatives: Sequence[Row]) -> str:
    known = plan["cost_state"] != "unknown"
    text = f"{_winner(plan)} was run because " + (
        "it was being discovered." if known else "its duration had never been measured."
    )
    rivals = comparable(plan, alternatives)
    if rivals and not is_rate(plan):
        text += _work_comparison(plan, rivals[0])
    measured = [row for row in alternatives if row["barred_by"] == "none" and is_rate(row)]
    if measured and not is_rate(plan):
        best = max(measured, key=lambda row: row["value_rate"])
        text += (
            f" An unmeasured graph goes before every measured one, so {shape_words(best)}, "
            f"worth {quantity(best['value_rate'])} per ms, had to wait."
        )
    elif not rivals:
        text += " Nothing else could run."
    return text


def _work_comparison(plan: Row, rival: Row) -> str:
    ours, theirs = quantity(plan["value_rate"]), quantity(rival["value_rate"])
    if is_tie(plan, rival):
        return f" It tied at {ours} of work with {_rival(plan, rival)}; {TIE_RULES}."
    if plan["value_rate"] > rival["value_rate"]:
        return (
            f" Of the unmeasured graphs it promised the most work: {ours} against {theirs} for {_rival(plan, rival)}."
        )
    return f" {capital(_rival(plan, rival))} promised more work ({theirs} against {ours})."


def _solo_prefill(plan: Row, alternatives: Sequence[Row]) -> str:
    text = f"{_winner(plan)} was run alone: nothing competed with this prompt, so it was cut by measured durations."
    rivals = comparable(plan, alternatives)
    if rivals and plan["value_rate"] < rivals[0]["value_rate"]:
        text += (
            f" {capital(_rival(plan, rivals[0]))} scored higher for this one step "
            f"({quantity(rivals[0]['value_rate'])} against {quantity(plan['value_rate'])} per ms), "
            "but the whole prompt ends sooner this way."
        )
    return text


def _token_budget(plan: Row, alternatives: Sequence[Row]) -> str:
    text = (
        f"{_winner(plan)} was run by the fixed token budget: every running answer first, then as many prompt tokens as "
        "it leaves, in the order in which the prompts came."
    )
    rivals = comparable(plan, alternatives)
    if not rivals:
        return text
    ours, theirs = quantity(plan["value_rate"]), quantity(rivals[0]["value_rate"])
    if is_tie(plan, rivals[0]):
        return f"{text} {capital(_rival(plan, rivals[0]))} does the same and tied at {ours} per ms; {TIE_RULES}."
    return f"{text} {capital(_rival(plan, rivals[0]))} does as much and was worth {theirs} per ms against {ours}."


def _ordinary(plan: Row, alternatives: Sequence[Row]) -> str:
    rivals = comparable(plan, alternatives)
    if not rivals:
        return f"{_winner(plan)} was the only graph that could run, worth {quantity(plan['value_rate'])} per ms."
    rival = rivals[0]
    ours, theirs = quantity(plan["value_rate"]), quantity(rival["value_rate"])
    if is_tie(plan, rival):
        return f"{_winner(plan)} tied with {_rival(plan, rival)} at {ours} per ms; {TIE_RULES}."
    if plan["value_rate"] < rival["value_rate"]:
        return (
            f"{_winner(plan)} was run although {_rival(plan, rival)} scored higher ({theirs} against {ours} per ms). "
            "The recorded scores alone do not explain this decision."
        )
    return (
        f"{_winner(plan)} was chosen over {_rival(plan, rival)}: it was worth {ours} per ms against {theirs}"
        f"{_because(plan, rival)}."
    )


def _because(plan: Row, rival: Row) -> str:
    part = decisive_part(plan, rival)
    if part is None:
        return ""
    ours, theirs = (signed_parts(row)[part.column] for row in (plan, rival))
    if not part.any_sign:  # costs are kept negative; people compare their sizes
        ours, theirs = abs(ours), abs(theirs)
    return f", mostly because {part.ahead} ({quantity(ours)} against {quantity(theirs)} per ms)"


def how_it_lost(plan: Row, alternative: Row) -> str:
    """Why this alternative did not run: barred, another unit, or the part in which it fell furthest behind."""
    if alternative["barred_by"] != "none":
        why = BARRED_WORDS.get(alternative["barred_by"], words(alternative["barred_by"]))
        same_unit = alternative["score_kind"] == plan["score_kind"]
        higher = same_unit and alternative["value_rate"] > plan["value_rate"]
        return f"scored higher than the winner, but was barred: {why}" if higher else f"barred: {why}"
    if alternative["score_kind"] != plan["score_kind"]:
        return "measured graphs wait for unmeasured ones" if is_rate(alternative) else "unmeasured, yet it waited"
    if is_tie(plan, alternative):
        return "tied; the tie rules decided"
    if alternative["value_rate"] > plan["value_rate"]:
        return f"it scored higher; the reason was {words(plan['reason'])}"
    part = decisive_part(plan, alternative)
    if part is None:
        return NO_PART
    ours, theirs = signed_parts(plan), signed_parts(alternative)
    text = f"{part.heading.lower()}: {quantity(ours[part.column] - theirs[part.column])} behind"
    waiting = ours["wait_cost"] - theirs["wait_cost"]
    if part.column == "wait_cost" or not waiting:
        return text
    return f"{text}; wait cost: {quantity(abs(waiting))} {'behind' if waiting > 0 else 'ahead'}"


NO_PART = "behind by rounding only"


def margin_words(plan: Row) -> str:
    """How clear the decision was, in percent where both scores lie above zero and as a difference otherwise."""
    margin, won = plan["margin"], plan["value_rate"]
    if margin is None:
        return "no rival in the same unit"
    if margin == 0:
        return "a tie"
    if not margin_is_ratio(won, margin):
        return f"{quantity(margin * abs(won))} {'per ms' if is_rate(plan) else 'undivided'}"
    return f"{percent(margin)}{' (close)' if abs(margin) < 0.02 else ''}"


def recorded_words(plan: Row, alternatives: Sequence[Row]) -> str:
    """How many of the candidates that lost are in the table: `4 of 8 others are recorded`."""
    others = max(plan["candidates"] - 1, len(alternatives))
    if others == len(alternatives):
        return "all others are recorded" if others else "there was no other"
    return f"{len(alternatives)} of {others:,} others {'is' if len(alternatives) == 1 else 'are'} recorded"
