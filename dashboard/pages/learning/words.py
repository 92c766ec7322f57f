"""What was learned, in sentences that claim only what the rows show."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.formatting import milliseconds, percent, words
from dashboard.learned import FULL_MS, Bound, by_depth, corrections, middle, reliability
from dashboard.queries.learning import MAX_ROUNDS, Learning
from dashboard.score import Row

LEDGER_WORDS = {"timing": "Timing refresh", "acceptance": "Acceptance learning"}
LEDGER_AIMS = {
    "timing": "runs a graph again whose estimate has grown stale",
    "acceptance": "verifies more drafts than pay today, to learn whether they would",
}


def depth_words(found: Learning) -> str:
    """Acceptance at the first and the last depth of each source."""
    rows = by_depth(found.rounds)
    parts = []
    for source in dict.fromkeys(row["source"] for row in rows):
        own = [row for row in rows if row["source"] == source]
        first, last = own[0], own[-1]
        text = (
            f"of {words(source)} drafts {percent(first['accepted'] / first['offered'])} were right at the first place"
        )
        if last is not first:
            text += f", {percent(last['accepted'] / last['offered'])} up to the {_ordinal(last['depth'])}"
        parts.append(text)
    newest = f"the newest {MAX_ROUNDS:,}" if found.plans >= MAX_ROUNDS else f"{found.plans:,}"
    return f"In {newest} plans that verified drafts, {'; '.join(parts)}."


def _ordinal(number: int) -> str:
    special = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth"}
    return special.get(number, f"{number}th")


def reliability_words(found: Learning) -> str:
    """How far forecasts were off, over all lanes of each source."""
    rows = reliability(found.rounds)
    parts = []
    for source in dict.fromkeys(row["source"] for row in rows):
        own = [row for row in rows if row["source"] == source]
        lanes = sum(row["lanes"] for row in own)
        forecast = sum(row["forecast"] * row["lanes"] for row in own) / lanes
        right = sum(row["accepted"] * row["lanes"] for row in own) / lanes
        parts.append(f"{words(source)}: {percent(forecast)} forecast, {percent(right)} right, {lanes:,} lanes")
    return f"Shares of a lane's drafts. {'; '.join(parts)}."


def bound_words(bound: Bound) -> str:
    """What a ledger has been charged against what it may be."""
    text = (
        f"{milliseconds(bound.spent_ms)} charged of {milliseconds(bound.allowed_ms)} allowed: "
        f"{percent(bound.share_ms / bound.ordinary_ms) if bound.ordinary_ms else 'a share'} of "
        f"{milliseconds(bound.ordinary_ms)} of ordinary time"
    )
    text += f", and one probe of up to {milliseconds(bound.largest_ms)}" if bound.largest_ms else ""
    if bound.credit_ms >= FULL_MS:
        state = "its credit is full, so it pays for the next probe that is worth one"
    elif bound.credit_ms < 0:
        state = f"it is {milliseconds(-bound.credit_ms)} in debt for its last probe"
    else:
        state = f"its credit is {milliseconds(bound.credit_ms)} of the {milliseconds(FULL_MS)} that a probe needs"
    return f"{text}. Now {state}."


def discovery_words(found: Learning) -> str:
    """What discovery cost and what the graphs did since."""
    if not found.graphs:
        return "No graph was measured for the first time in this span."
    cost = sum(row["discovery_ms"] for row in found.graphs)
    used = [row for row in found.graphs if row["plans"]]
    ordinary = sum(row["ordinary_ms"] for row in used)
    number = len(found.graphs)
    text = (
        f"{number:,} graph{' was' if number == 1 else 's were'} measured for the first time, in {milliseconds(cost)} "
        "of device time. "
    )
    if not used:
        return text + "None of them was chosen for ordinary work yet."
    share = ordinary / found.ordinary_ms if found.ordinary_ms else 0.0
    text += f"{len(used):,} of them were then chosen for ordinary work: {percent(share)} of its time in this span."
    return text


def timing_words(episodes: Sequence[Row]) -> str:
    """What refreshes corrected."""
    off = corrections(episodes)
    if not off:
        return "No stale estimate was measured again in this span."
    each = f"{len(off):,} stale estimate{' was' if len(off) == 1 else 's were'} measured again"
    if off[0] < 0.005:
        return f"{each}, and each still held."
    middle_, most = percent(middle(off)), percent(off[0])
    return f"{each}: off by {middle_} in the middle, {most} at the most; decisions reckon with the new ones."


def acceptance_words(episodes: Sequence[Row]) -> str:
    """What acceptance probes tried."""
    probes = [row for row in episodes if row["ledger"] == "acceptance" and row["outcome"] == "completed"]
    offered, accepted = (sum(row[name] for row in probes) for name in ("offered_tokens", "accepted_tokens"))
    if not offered:
        return "No drafts were verified to learn from in this span."
    tokens = sum(row["output_tokens"] for row in probes)
    return (
        f"{len(probes):,} probe{'' if len(probes) == 1 else 's'} verified {offered:,} drafts, of which {accepted:,} "
        f"({percent(accepted / offered)}) were right; they still committed {tokens:,} output tokens."
    )
