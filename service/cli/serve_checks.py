"""Options of `helios serve` that are each allowed and contradict each other, found before anything is started."""

from __future__ import annotations

from scheduler.capacity import verification_width
from service.settings import Settings


def wrong_combination(settings: Settings) -> str | None:
    """One line that says what contradicts what, or None."""
    if settings.draft_tokens == 0:
        return _without_drafts(settings)
    width = verification_width(settings.verification)
    if width > settings.draft_tokens + 1:
        return (
            f"--verification {settings.verification} verifies {width - 1} drafts per request and --draft-tokens is "
            f"{settings.draft_tokens}; raise --draft-tokens or lower N"
        )
    if width > settings.speculative_token_capacity:
        return (
            f"--verification {settings.verification} needs {width} rows for one request and "
            f"--speculative-token-capacity is {settings.speculative_token_capacity}; raise it or lower N"
        )
    if width and settings.draft_allocation == "device":
        return (
            f"--verification {settings.verification} gives every request the same rows and --draft-allocation device "
            "divides them by confidence; use --verification adaptive or another allocation"
        )
    if settings.draft_allocation == "device" and settings.draft_head == "none":
        return (
            "--draft-allocation device divides rows by a draft head's confidence and --draft-head is none; use "
            "--draft-allocation host"
        )
    return None


def _without_drafts(settings: Settings) -> str | None:
    """Options that mean nothing without speculation."""
    given = {
        "--verification": settings.verification != "adaptive",
        "--draft-head": settings.draft_head not in ("auto", "none"),
        "--draft-allocation": settings.draft_allocation != "none",
    }
    for option, used in given.items():
        if used:
            return f"{option} is for speculation, which --draft-tokens of at least 1 turns on"
    return None
