"""Bins of time as figures: the share that the device was busy, and the longest plan and gap of each bin."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

from dashboard.bins import Bin, Binned, Extreme
from dashboard.formatting import age, count, milliseconds, percent, utc, words
from dashboard.timeline_records import from_us

ROW_HEIGHT = 0.84
GAP_COLOUR = "#808894"


def bin_traces(binned: Binned, colour: Callable[[str], str]) -> list[dict[str, Any]]:
    """One trace for each kind or reason: bars stacked in the row of their slot, as high as their share of the time."""
    groups = sorted({one.group for one in binned.bins}, key=lambda group: -_busy(binned.bins, group))
    stacked: dict[tuple[int, int | None], float] = {}
    traces = []
    for group in groups:
        some = [one for one in binned.bins if one.group == group]
        bases, heights = [], []
        for one in some:
            place = (one.number, one.slot)
            below = stacked.get(place, 0.0)
            height = min(1.0 - below, one.busy_ns / (binned.width_us * 1000))
            stacked[place] = below + height
            bases.append(round(-(one.slot or 0) - ROW_HEIGHT / 2 + below * ROW_HEIGHT, 4))
            heights.append(round(height * ROW_HEIGHT, 4))
        traces.append(_bars(binned, group, some, bases, heights, colour))
    return traces


def _busy(bins: Sequence[Bin], group: str) -> int:
    return sum(one.busy_ns for one in bins if one.group == group)


def _bars(
    binned: Binned,
    group: str,
    some: Sequence[Bin],
    bases: Sequence[float],
    heights: Sequence[float],
    colour: Callable[[str], str],
) -> dict[str, Any]:
    width_ms = binned.width_us / 1000
    return {
        "type": "bar",
        "uid": f"bins-{group}",
        "name": html.escape(words(group)),
        "ids": [f"{zoom_id(binned, one.number)}/{one.slot}" for one in some],
        "x": [(one.number + 0.5) * width_ms for one in some],
        "width": width_ms,
        "base": list(bases),
        "y": list(heights),
        "customdata": [_bin_words(binned, one) for one in some],
        "hovertemplate": (
            f"<b>{html.escape(words(group))}</b>  %{{customdata[0]}}<br>busy %{{customdata[1]}} of %{{customdata[2]}}"
            "<br>from %{customdata[3]}<br>select it to look closer<extra></extra>"
        ),
        "marker": {"color": colour(group), "line": {"width": 0}},
    }


def _bin_words(binned: Binned, one: Bin) -> list[str]:
    share = one.busy_ns / (binned.width_us * 1000)
    return [
        f"{count(one.plans)} plan{'' if one.plans == 1 else 's'}",
        f"{percent(share)}, {milliseconds(one.busy_ns / 1e6)}",
        age(binned.width_us / 1000),
        utc(from_us(one.number * binned.width_us)),
    ]


def zoom_id(binned: Binned, number: int) -> str:
    """The id of a mark that shows its bin's time when it is selected."""
    return f"zoom:{number * binned.width_us / 1000:.3f}/{(number + 1) * binned.width_us / 1000:.3f}"


def extreme_traces(binned: Binned, colour: Callable[[str], str]) -> list[dict[str, Any]]:
    """The longest plan of each bin and slot as a dot, the longest gap as an open diamond."""
    longest = _dots("longest", "longest plan", binned, binned.longest)
    longest["marker"] = {"size": 6, "color": [colour(mark.group) for mark in binned.longest]}
    gaps = _dots("gaps", "longest gap", binned, binned.gaps)
    gaps["marker"] = {"size": 6, "symbol": "diamond-open", "color": GAP_COLOUR}
    return [trace for trace in (gaps, longest) if trace["ids"]]


def _dots(uid: str, name: str, binned: Binned, marks: Sequence[Extreme]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "uid": uid,
        "name": name,
        "yaxis": "y2",
        "ids": [zoom_id(binned, m.number) if m.run_id is None else f"{m.run_id}/{m.fence}" for m in marks],
        "x": [mark.at_us / 1000 for mark in marks],
        "y": [max(mark.length_ns, 1000) / 1e6 for mark in marks],
        "customdata": [_extreme_words(name, mark) for mark in marks],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
    }


def _extreme_words(name: str, mark: Extreme) -> list[str]:
    what = f"{name} of its bin: {milliseconds(mark.length_ns / 1e6)}"
    if mark.fence is None:
        return [what, html.escape(words(mark.group)), f"in the minute of {utc(from_us(mark.at_us))}"]
    before = "before it: " if name == "longest gap" else ""
    return [what, f"{before}{html.escape(words(mark.group))}, plan {count(mark.fence)}", utc(from_us(mark.at_us))]
