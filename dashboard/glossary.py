"""The plan page's terms in one sentence each: tooltips of names and columns, and the glossary at its end."""

from __future__ import annotations

TERMS: dict[str, str] = {
    "B: request rows": "How many requests the graph has room for.",
    "D: draft depth": "How many draft tokens per request are guessed ahead; 0 without speculation.",
    "W: rows per lane": "How many token rows one request may use.",
    "P: verification rows": "How many token rows are verified; prompt rows are not counted.",
    "R: prompt rows": "How many prompts may ride in one mixed graph, packed one behind another.",
    "Lane": "One request's place in the graph.",
    "Frame slot": "Which of the submission buffers the plan used; 0 while one plan runs at a time.",
    "Score": "What running the graph was worth: value per ms of its duration, or undivided value.",
    "Undivided": "A graph that was never measured has no duration to divide by, so its whole value is compared. It is "
    "never compared by size with a value per ms.",
    "Score horizon": "The duration that the value is divided by: this graph's, or this and the following graph's.",
    "Margin": "(Score minus the runner-up's score) / score, in percent; the runner-up is the best other candidate that "
    "was free to run, in the same unit. Where a score is zero or negative the difference itself is shown.",
    "Rank": "How the runner-ups were picked: first the best of every other kind, then the best remaining by score.",
    "Wait cost": "What streams lose by growing older while the graph runs: longer graphs cost more. It is subtracted.",
    "Prompt waits": "What the graph spares the prompts that wait: how much sooner each of them, and all that stand "
    "behind it, can be read. It counts with prompt_wait_price.",
    "Late gaps": "What the graph does to gaps between outputs that are later than the target: above zero it ends them, "
    "below zero it lets them grow. It counts with decode_late_price.",
    "Lane value": "What serving this one request added to the score before dividing by the duration. With "
    "decode_late_price it holds the lateness that this spares, which compares lanes and is no part of the score.",
    "Token price": "What one of its tokens is worth beyond the base value; it grows while the request goes without.",
    "Delivery price": "What one visible burst of output is worth to this stream; it grows while it goes without.",
    "Sigma": "The time one round of service for all streams takes on the best measured graph; ages are priced with it.",
    "Terminal": "What retiring a finished request's state is worth.",
    "Common scale": "When numbers would get too large, all values of a decision are multiplied by one power of two; "
    "its natural logarithm is shown, 0 meaning none. It changes no comparison within the decision.",
    "Ordinary": "The graph with the best score ran.",
    "Discovery": "A graph whose duration was unknown ran, and was measured by it. Such graphs go before measured ones.",
    "Cadence": "While answers run, only graphs compete that serve all of them; the others are barred.",
    "Token budget": "A fixed number of tokens a step instead of a choice by value, for comparison with other servers.",
    "Exploration ledgers": "Device time saved up and spent on measuring again and on learning acceptance.",
}

# Names of numbers and columns that are explained by a term of another name.
_SAME: dict[str, str] = {"Common scale, ln": "Common scale", "Value": "Lane value"}


def meaning(name: str) -> str | None:
    """The explanation of a name on the page, None where it explains itself."""
    return TERMS.get(_SAME.get(name, name)) if name != "Reason" else f"{TERMS['Ordinary']} {TERMS['Discovery']}"
