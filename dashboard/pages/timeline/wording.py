"""The timeline in words: what is in view, what its marks mean, and what happened beside the plans."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from dashboard.bins import Extreme
from dashboard.figures.lanes import PHASE_COLOURS
from dashboard.figures.timeline import HOLE_COLOUR, gap_rows, group_colour, length_ms, start_ms
from dashboard.formatting import age, count, milliseconds, shape_words, utc, words
from dashboard.palette import KIND_COLOURS
from dashboard.routing import TIMELINE_PATH, path_with, plan_path
from dashboard.timeline_records import Filters, Picture, PlanRow, from_us

MOST_EVENTS = 8
PHASE_WORDS = {"waiting": "waits", "prompt": "prompt is read", "answer": "answers"}
BINS_WORDS = "A bar is as high as its share of the time; below, dots are the longest plans, diamonds the longest gaps."
ENDED_WORDS = "failed, abandoned or lost"


def caption(picture: Picture, filters: Filters, now: dt.datetime) -> list[Any]:
    """What chart and table hold, in one to four sentences."""
    if not picture.total:
        return [f"No plan{_of(filters)} was chosen {_between(picture)}. Look earlier, or zoom out."]
    if picture.binned is not None:
        return _binned_caption(picture)
    rows = picture.rows
    text = f"{_plans(len(rows))}, committed {_between_rows(rows)}."
    if picture.total > len(rows):
        text = f"Only the newest {_plans(len(rows))} of {count(picture.total)} are shown, {_between_rows(rows)}."
    parts: list[Any] = [text]
    now_ms = now.timestamp() * 1e3
    longest = max((row for row in rows if row["completed_ns"]), key=lambda row: length_ms(row, now_ms), default=None)
    if longest is not None:
        name = f"plan {longest['fence']}, {shape_words(longest)}"
        parts.append(f" The longest took {milliseconds(length_ms(longest, now_ms))}: ")
        parts += [_plan_link(longest["run_id"], longest["fence"], name), "."]
    gap = max(gap_rows(sorted(rows, key=start_ms)), key=lambda one: float(one["length"]), default=None)
    if gap is not None:
        row = gap["row"]
        parts += [f" The longest gap was {milliseconds(gap['length'])}, before "]
        parts += [_plan_link(row["run_id"], row["fence"], f"plan {row['fence']}"), "."]
    return [*parts, *_requests(picture)]


def _binned_caption(picture: Picture) -> list[Any]:
    binned = picture.binned
    assert binned is not None, "only of bins"
    stretches = len({one.number for one in binned.bins})
    parts: list[Any] = [
        f"{_plans(picture.total)} in {count(stretches)} bin{'' if stretches == 1 else 's'} of "
        f"{age(binned.width_us / 1000)}. The longest plan{'' if not binned.gaps else ' and the longest gap'} of each "
        "bin is a mark of its own, so no outlier is hidden."
    ]
    if binned.longest:
        longest = max(binned.longest, key=lambda mark: mark.length_ns)
        parts += [f" The longest of all took {milliseconds(longest.length_ns / 1e6)}: ", _extreme(longest), "."]
    if binned.gaps:
        gap = max(binned.gaps, key=lambda mark: mark.length_ns)
        parts += [f" The longest gap was {age(gap.length_ns / 1e6)}, before ", _extreme(gap), "."]
    if picture.level == "minutes":
        parts.append(" So many plans are summed by whole minutes; zoom in for frame slots and short gaps.")
    return [*parts, *_requests(picture)]


def _requests(picture: Picture) -> list[str]:
    shown = len(picture.lives.lives)
    if picture.lives.found <= shown:
        return []
    return [
        f" Of {count(picture.lives.found)} requests the {shown} that waited longest for their first token are shown."
    ]


def _extreme(mark: Extreme) -> Any:
    if mark.run_id is None or mark.fence is None:
        return utc(from_us(mark.at_us))
    return _plan_link(mark.run_id, mark.fence, f"plan {mark.fence}, {words(mark.group)}, {utc(from_us(mark.at_us))}")


def _plan_link(run_id: str, fence: int, text: str) -> Any:
    return dcc.Link(text, href=plan_path(run_id, fence))


def _plans(number: int) -> str:
    return f"{count(number)} plan{'' if number == 1 else 's'}"


def _of(filters: Filters) -> str:
    named = filter_words(filters)
    return f" {' '.join(named)}" if named else ""


def filter_words(filters: Filters) -> list[str]:
    """Each filter that is set, to follow the word `plans`."""
    return [
        *([f"of kind {words(filters.kind)}"] if filters.kind else []),
        *([f"with reason {words(filters.reason)}"] if filters.reason else []),
        *([f"that are {words(filters.outcome)}"] if filters.outcome else []),
        *([f"of policy version {filters.policy_version}"] if filters.policy_version is not None else []),
        *([f"of run {filters.run}"] if filters.run else []),
        *([f"that served {filters.request}"] if filters.request else []),
    ]


def filter_note(filters: Filters) -> list[Any]:
    """That not all plans are shown, with a way to see them all."""
    named = filter_words(filters)
    if not named:
        return []
    return [f"Only plans {' and '.join(named)} · ", dcc.Link("show all", href=TIMELINE_PATH)]


def _between(picture: Picture) -> str:
    return f"from {utc(picture.since).removesuffix(' UTC')} to {utc(picture.until)}"


def _between_rows(rows: Sequence[PlanRow]) -> str:
    first, last = (pick(row["committed_at"] for row in rows).astimezone(dt.UTC) for pick in (min, max))
    same_day = first.date() == last.date()
    end = f"{last:%H:%M:%S}" if same_day else f"{last:%Y-%m-%d %H:%M:%S}"
    return f"from {first:%Y-%m-%d %H:%M:%S} to {end} UTC"


def legend(picture: Picture, by: str) -> list[Any]:
    """What the colours mean, of what is in view."""
    colour = group_colour(by)
    if picture.binned is None:
        groups = {str(row[by]) for row in picture.rows}
    else:
        groups = {one.group for one in picture.binned.bins}
    order = [name for name in KIND_COLOURS if name in groups] if by == "kind" else []
    names = [*order, *sorted(groups - set(order))]
    entries = [_swatch(words(name), colour(name)) for name in names]
    if picture.binned is None:
        entries.append(html.Span([html.Span(className="swatch faint"), " still running"], className="legend-entry"))
        entries.append(html.Span([html.Span(className="swatch hatched"), f" {ENDED_WORDS}"], className="legend-entry"))
    else:
        entries.append(html.Span(BINS_WORDS))
    if picture.events.holes:
        entries.append(_swatch("missing in the trace", HOLE_COLOUR))
    if picture.lives.lives:
        entries.append(html.Span("Requests:", className="legend-heading"))
        entries += [_swatch(PHASE_WORDS[phase], colour_, thin=True) for phase, colour_ in PHASE_COLOURS.items()]
    return entries


def _swatch(text: str, colour: str, *, thin: bool = False) -> Any:
    mark = html.Span(className="swatch thin" if thin else "swatch", style={"background": colour})
    return html.Span([mark, f" {text}"], className="legend-entry")


def events(picture: Picture) -> list[Any]:
    """Policy changes, starts and holes of the trace as a list, the newest first; nothing without any."""
    found = picture.events
    entries: list[tuple[dt.datetime, list[Any]]] = []
    for change in found.changes:
        actor = f" by {change.actor}" if change.actor and not change.at_start else ""
        what = (
            f"the engine started with policy version {change.version}"
            if change.at_start
            else (f"policy version {change.version} came into force{actor}")
        )
        link = dcc.Link("its plans", href=path_with(TIMELINE_PATH, policy=change.version))
        entries.append((change.at, [f"{utc(change.at)}: {what} · ", link]))
    for hole in found.holes:
        many = "plans" if hole.plans is None else _plans(hole.plans)
        entries.append((hole.since, [f"{utc(hole.since)}: {many} missing in the trace: {hole.reason}"]))
    entries.sort(key=lambda entry: entry[0], reverse=True)
    if not entries:
        return []
    more = found.change_count + len(found.holes) - min(len(entries), MOST_EVENTS)
    tail = [html.Li(f"and {count(more)} more, earlier")] if more > 0 else []
    return [html.H3("Meanwhile"), html.Ul([*(html.Li(parts) for _, parts in entries[:MOST_EVENTS]), *tail])]
