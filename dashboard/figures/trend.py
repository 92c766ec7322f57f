"""The overview's trends: one value, two percentiles or stacked shares over time. Rows in, plain dict figures out."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Sequence
from typing import Any

from dashboard.figures.axes import UNMEASURED
from dashboard.formatting import words
from dashboard.palette import KIND_COLOURS, SERIES_COLOURS, kind_colour
from dashboard.queries.latencies import Percentiles
from dashboard.queries.trends import Bucket, Trends
from dashboard.score import Row
from dashboard.span import Span

HEIGHT_PX = 190
FEW_POINTS = 20
LONG_S = 2 * 86_400.0
"""From here on the axis shows days."""
LABEL_SHARE = 0.12
"""What the label of a policy change takes of a chart's width, about."""
SHORTEST_S = 10.0
"""A piece of a stretch of time that is shorter says nothing about a rate yet."""


def tokens_figure(trends: Trends) -> dict[str, Any]:
    """Output tokens a second."""
    buckets = _rated(trends)
    rates = [bucket.tokens / bucket.seconds for bucket in buckets]
    trace = _line(trends, "output", SERIES_COLOURS["tokens"], buckets, rates, "%{y:,.1f} tokens/s")
    return _figure(trends, [{**trace, "fill": "tozeroy", "fillcolor": _faint(SERIES_COLOURS["tokens"])}], "")


def first_token_figure(trends: Trends) -> dict[str, Any]:
    """Half and 99 % of the requests got their first token within so many ms, by their arrival."""
    return _percentile_figure(trends, [bucket.first_token for bucket in trends.buckets])


def between_figure(trends: Trends) -> dict[str, Any]:
    """The mean time between a request's tokens: half and 99 % of the requests stay below, by their arrival."""
    return _percentile_figure(trends, [bucket.between for bucket in trends.buckets])


def busy_figure(trends: Trends) -> dict[str, Any]:
    """The share of time that the device was busy, stacked by kind."""
    buckets = _rated(trends)
    traces = []
    for kind in kinds_in_order(trends):
        shares = [bucket.busy_ms.get(kind, 0.0) / bucket.seconds / 10 for bucket in buckets]
        label = html.escape(words(kind))
        trace = _line(trends, label, kind_colour(kind), buckets, shares, "%{y:.1f} %")
        traces.append({**trace, "stackgroup": "busy", "fillcolor": kind_colour(kind), "line": {"width": 0}})
    figure = _figure(trends, traces, " %")
    figure["layout"]["yaxis"]["range"] = [0, 100]
    return figure


def kinds_in_order(trends: Trends) -> list[str]:
    """The kinds that ran, from the bottom of the stack to its top."""
    names = [share.name for share in trends.kinds]
    return [kind for kind in KIND_COLOURS if kind in names] + sorted(set(names) - set(KIND_COLOURS))


def _percentile_figure(trends: Trends, found: Sequence[Percentiles]) -> dict[str, Any]:
    series = (("p99", [one.p99 for one in found]), ("p50", [one.p50 for one in found]))
    counts = [f"{one.count:,} request{'' if one.count == 1 else 's'}" for one in found]
    traces = [
        {
            **_line(trends, name, SERIES_COLOURS[name], trends.buckets, values, "%{y:,.1f} ms of %{customdata}"),
            "customdata": counts,
        }
        for name, values in series
    ]
    return _figure(trends, traces, "")


def _rated(trends: Trends) -> list[Bucket]:
    """Without pieces at the ends that are too short for a rate, unless there is nothing else."""
    long = [bucket for bucket in trends.buckets if bucket.seconds >= SHORTEST_S]
    return long or trends.buckets


def _line(
    trends: Trends, name: str, colour: str, buckets: Sequence[Bucket], values: Sequence[float | None], hover: str
) -> dict[str, Any]:
    few = len(buckets) <= FEW_POINTS
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "name": name,
        "x": [_middle(bucket, trends) for bucket in buckets],
        "y": [None if value is None else round(value, 3) for value in values],
        "line": {"color": colour, "width": 1.8},
        "marker": {"color": colour, "size": 5},
        "connectgaps": False,
        "hovertemplate": f"{name} {hover}<extra></extra>",
    }


def _middle(bucket: Bucket, trends: Trends) -> str:
    """Of the part of it that counts."""
    begin, end = max(bucket.start, trends.span.since), min(bucket.start + trends.width, trends.span.until)
    return _axis(begin + (end - begin) / 2)


def _axis(at: dt.datetime) -> str:
    """Plotly reads a time without a zone as it stands; the axis says that it is UTC."""
    return at.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")


def _faint(colour: str) -> str:
    return f"{colour}26"


def _figure(trends: Trends, traces: list[dict[str, Any]], unit: str) -> dict[str, Any]:
    return {
        "data": traces,
        "layout": {
            "height": HEIGHT_PX,
            # Wide enough for the longest labels: margins that fit themselves cost two more passes of drawing.
            "margin": {"l": 48, "r": 8, "t": 22, "b": 24},
            # The legend is text of the page: it wraps on a phone, and is read aloud.
            "showlegend": False,
            "hovermode": "x unified",
            "dragmode": "zoom",
            "uirevision": "trend",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": {
                "type": "date",
                "range": [_axis(trends.span.since), _axis(trends.span.until)],
                "hoverformat": "%b %-d, %H:%M UTC",
                "showgrid": False,
                "nticks": 6,
                "tickangle": 0,
                "tickformat": "%b %-d" if trends.span.seconds > LONG_S else "%H:%M",
                "tickfont": {"size": 11},
            },
            "yaxis": {
                "rangemode": "tozero",
                "fixedrange": True,
                "nticks": 5,
                "ticksuffix": unit,
                **UNMEASURED,
                "separatethousands": True,
                "tickfont": {"size": 11},
            },
            **_changes(trends.changes, trends.span),
        },
    }


def _changes(changes: Sequence[Row], span: Span) -> dict[str, Any]:
    """A thin line where a policy version came into force, and its number where there is room for it."""
    lines = [
        {
            "type": "line", "x0": _axis(change["applied_at"]), "x1": _axis(change["applied_at"]), "y0": 0, "y1": 1,
            "yref": "paper", "line": {"color": SERIES_COLOURS["change"], "width": 1.2, "dash": "dot"},
        }
        for change in changes
    ]  # fmt: skip
    return {"shapes": lines, "annotations": _labels(changes, span)}


def _labels(changes: Sequence[Row], span: Span) -> list[dict[str, Any]]:
    """The newest first: one that would lie on another is left out, one at the end stands before its line."""
    labels: list[dict[str, Any]] = []
    free_until = float("inf")
    for change in changes:
        at = (change["applied_at"] - span.since).total_seconds() / span.seconds
        late = at > 1 - LABEL_SHARE
        if at + (0 if late else LABEL_SHARE) > free_until:
            continue
        labels.append(
            {
                "x": _axis(change["applied_at"]), "y": 1, "yref": "paper", "xanchor": "right" if late else "left",
                "yanchor": "bottom", "showarrow": False, "text": f"policy {change['version']}", "font": {"size": 11},
            }
        )  # fmt: skip
        free_until = at - (LABEL_SHARE if late else 0)
    return labels
