"""A draft in the policy page's address, so that it can be sent: `?draft=token_fairness:20,newcomer_memory:decode`.

Only what differs from the policy in force stands there. An address is typed and sent by people, so whatever cannot be
used is told on the page and the rest is taken.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from dashboard.formatting import some_names
from dashboard.pages.policy.values import MAX_ENTRY, Change, parse_entry, show
from dashboard.routing import first
from scheduler.policy import COEFFICIENT_BY_NAME

MAX_DRAFT = 2000
_VERSION = re.compile(r"[0-9]{1,18}", flags=re.ASCII)
PREVIEW_ID = re.compile(r"[A-Za-z0-9._-]{1,80}", flags=re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class AddressDraft:
    """The entries that an address gives, by coefficient; `problem` says what of it could not be used, or is empty."""

    entries: dict[str, str]
    problem: str = ""


def draft_in(search: str) -> AddressDraft:
    """What an address's query proposes."""
    text = first(search, "draft") or ""
    if not text:
        return AddressDraft({})
    if len(text) > MAX_DRAFT:
        return AddressDraft({}, "The draft in the address is too long and was left out.")
    entries, refused = {}, []
    for part in text.split(","):
        name, _, entry = part.partition(":")
        coefficient = COEFFICIENT_BY_NAME.get(name.strip())
        entry = entry.strip()
        if coefficient is None or len(entry) > MAX_ENTRY or coefficient.problem(parse_entry(coefficient, entry)):
            refused.append(part if len(part) <= MAX_ENTRY else f"{part[:MAX_ENTRY]}…")
        else:
            entries[coefficient.name] = entry
    problem = f"Left out of the address's draft, since it cannot be used: {some_names(refused)}." if refused else ""
    return AddressDraft(entries, problem)


def draft_text(changes: Sequence[Change]) -> str:
    """What an address gives for these changes; empty for none."""
    return ",".join(f"{change.coefficient.name}:{show(change.after)}" for change in changes)


def preview_in(search: str) -> str | None:
    """The preview that an address names (`?preview=ID`), or None."""
    found = first(search, "preview")
    return found if found is not None and PREVIEW_ID.fullmatch(found) else None


def trial_in(search: str) -> int | None:
    """The version whose trial an address opens (`?trial=5`), or None."""
    found = first(search, "trial")
    return int(found) if found is not None and _VERSION.fullmatch(found) else None
