"""A question to the trace store in SQL, and its answer's form, as they go to a process of its own and back."""

from __future__ import annotations

from typing import Literal

import msgspec

MOST_ROWS = 50_000
MOST_SECONDS = 30.0
MOST_STATEMENT = 100_000
"""Characters of one statement."""
MOST_BYTES = {"json": 4 << 20, "csv": 32 << 20}
"""Of an answer, by its form; rows behind it are left out, and the answer says so."""
LONGEST_VALUE = {"json": 2_000, "csv": 32_000}
"""Characters of one value, by form: what people read in a page, and what a spreadsheet's cell holds."""

Form = Literal["json", "csv"]
Cut = Literal["rows", "bytes"]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One reading statement; at most `rows` rows of the answer are wanted, within `timeout_s` seconds."""

    url: str
    statement: str
    rows: int
    timeout_s: float
    form: Form


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of an answer beside its bytes, or of a question that has none.

    `truncated` says what bounded the answer: it has more rows than were asked for, or than fit. `cut_values` counts the
    values that are given in part. `error` is a message for people, `offset` the character of the statement that it is
    about; `is_mistake` says whether the statement is at fault and not the store.
    """

    rows: int = 0
    truncated: Cut | None = None
    cut_values: int = 0
    error: str | None = None
    offset: int | None = None
    is_mistake: bool = True
