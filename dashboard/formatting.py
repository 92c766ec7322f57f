"""Numbers, times and shapes as people read them. Every function takes a value as stored and returns text."""

from __future__ import annotations

import datetime as dt
import re

from dashboard.score import Row

NOTHING = "–"


def capital(text: str) -> str:
    """The text with a capital letter in front; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def milliseconds(value_ms: float | None) -> str:
    """A duration in ms: `83 µs`, `4.21 ms`, `318 ms`, `12.4 s`; a dash for None."""
    if value_ms is None:
        return NOTHING
    if abs(value_ms) >= 10_000:
        return f"{value_ms / 1e3:,.1f} s"
    if abs(value_ms) >= 100:
        return f"{value_ms:,.0f} ms"
    if abs(value_ms) >= 10:
        return f"{value_ms:.1f} ms"
    if value_ms == 0:
        return "0 ms"
    if abs(value_ms) >= 0.1:
        return f"{value_ms:.2f} ms"
    return microseconds(value_ms * 1e3)


def microseconds(value_us: float | None) -> str:
    """A duration in µs: `83 µs`, `1,250 µs`; a dash for None."""
    if value_us is None:
        return NOTHING
    return f"{value_us:,.0f} µs" if abs(value_us) >= 10 else f"{value_us:.2g} µs"


def predicted(cost_ms: float | None, cost_state: str) -> str:
    """A predicted duration; graphs that were never measured have none, whatever is stored."""
    return "never measured" if cost_state == "unknown" else milliseconds(cost_ms)


def age(value_ms: float | None) -> str:
    """How long ago, in the largest fitting unit: `210 ms`, `4.2 s`, `7 min`, `3.5 h`, `2.1 d`; `never` for None."""
    if value_ms is None:
        return "never"
    seconds = value_ms / 1e3
    if seconds < 1:
        return f"{value_ms:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def count(value: int | None) -> str:
    """A whole number with thousands separators; a dash for None."""
    return NOTHING if value is None else f"{value:,}"


def quantity(value: float | None) -> str:
    """A value, price or score with three significant digits: `3.10`, `0.0421`, `1,240`, `1.2e+15`."""
    if value is None:
        return NOTHING
    size = abs(value)
    if value == 0 or 100 <= size < 1e9:
        return f"{value:,.0f}"
    if size >= 1e9 or size < 1e-3:
        return f"{value:.3g}"
    digits = 2 if size >= 1 else 3 if size >= 0.1 else 4
    return f"{value:.{digits - (size >= 10)}f}"


def score(row: Row) -> str:
    """A recorded score with its unit: `3.10 per ms`, or `312 undivided` where the duration was unknown."""
    return f"{quantity(row['value_rate'])} " + ("per ms" if row["score_kind"] == "rate" else "undivided")


def percent(ratio: float | None) -> str:
    """A ratio as percent: `61 %`, `0.42 %`; a dash for None."""
    if ratio is None:
        return NOTHING
    return f"{ratio * 100:,.0f} %" if abs(ratio) >= 0.1 or ratio == 0 else f"{ratio * 100:.2g} %"


def against_prediction(observed_ms: float | None, cost_ms: float | None, cost_state: str) -> str:
    """How an observed duration compares with the predicted one: `4 % longer`, `as predicted`; a dash if unknown."""
    if observed_ms is None or not cost_ms or cost_state == "unknown":
        return NOTHING
    difference = observed_ms / cost_ms - 1
    if abs(difference) < 0.005:
        return "as predicted"
    return f"{percent(abs(difference))} {'longer' if difference > 0 else 'shorter'}"


def utc(moment: dt.datetime | None) -> str:
    """A UTC date and time to the second: `2026-11-29 18:46:05 UTC`; a dash for None."""
    return NOTHING if moment is None else moment.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def utc_clock(moment: dt.datetime | None) -> str:
    """A UTC time of day to the millisecond: `18:46:05.123`; a dash for None."""
    if moment is None:
        return NOTHING
    return moment.astimezone(dt.UTC).strftime("%H:%M:%S.%f")[:-3]


def words(name: str) -> str:
    """A lower_snake name as words: `terminal_snapshot` to `terminal snapshot`."""
    return name.replace("_", " ")


def coefficient_label(name: str) -> str:
    """A coefficient's name as a form label; its unit stands beside the field: `adaptation_ms` to `Adaptation`."""
    text = words(re.sub("_(ms|ns)$", "", name))
    return capital(text).replace(" ttl", " lifetime")


def shape_words(row: Row) -> str:
    """A shape as people say it: `decode ×4`, `prefill 256`, `speculative ×4 depth 2`, `mixed ×4 + 256`.

    With room for several prompts: `mixed ×8 + 256 for 4 prompts`.
    """
    kind, batch = row["kind"], row["batch_capacity"]
    if kind in ("prefill", "scored_prefill"):
        return f"{words(kind)} {row['prefill_capacity']}" + (f" ×{batch}" if batch > 1 else "")
    text = f"{words(kind)} ×{batch}"
    if row["draft_depth"]:
        text += f" depth {row['draft_depth']}"
    if row["prefill_capacity"]:
        text += f" + {row['prefill_capacity']}"
    return f"{text} for {row['prompt_rows']} prompts" if row["prompt_rows"] > 1 else text


def shape_numbers(row: Row) -> str:
    """A shape's extents: `B 4 · D 0 · W 1 · P 4`, with `C 256` where it holds prompt tokens, and `R 4` of 4 prompts."""
    text = (
        f"B {row['batch_capacity']} · D {row['draft_depth']} · W {row['target_width']} · P {count(row['target_rows'])}"
    )
    if row["prefill_capacity"]:
        text += f" · C {count(row['prefill_capacity'])}"
    return f"{text} · R {row['prompt_rows']}" if row["prompt_rows"] > 1 else text


def some_names(names: list[str], shown: int = 4) -> str:
    """The first few names and how many more there are: `a, b, c, d and 12 more`."""
    head = ", ".join(names[:shown])
    return f"{head} and {len(names) - shown} more" if len(names) > shown else head
