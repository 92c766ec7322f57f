"""What the timeline shows, as its address says it: a span of time, a colouring and filters."""

from __future__ import annotations

import dataclasses
import datetime as dt
import urllib.parse

from dashboard.routing import MAX_REQUEST, first, policy_filter, request_filter
from dashboard.span import Span, read_span
from dashboard.timeline_records import Filters

COLOURINGS = ("kind", "reason")
MAX_NAME = 60


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """`span` None: the newest plans, whenever they were. `by`: kind or reason, what the colours stand for."""

    span: Span | None
    by: str
    filters: Filters

    @property
    def follows(self) -> bool:
        """Whether it moves on with the newest plans; a span between two fixed times does not."""
        return self.span is None or self.span.last is not None


def read_view(search: str, now: dt.datetime) -> View:
    """The view of an address's query. What cannot be read is left out: a span, a colouring or a filter."""
    timed = any(first(search, name) is not None for name in ("last", "since", "until"))
    by = first(search, "by")
    filters = Filters(
        run=_name(search, "run", MAX_REQUEST),
        kind=_name(search, "kind"),
        reason=_name(search, "reason"),
        outcome=_name(search, "outcome"),
        policy_version=policy_filter(search),
        request=request_filter(search),
    )
    return View(read_span(search, now) if timed else None, by if by in COLOURINGS else COLOURINGS[0], filters)


def _name(search: str, name: str, longest: int = MAX_NAME) -> str | None:
    value = first(search, name)
    return value if value and value.isprintable() and len(value) <= longest else None


def timeline_query(view: View) -> str:
    """The query of the view's address, with a leading question mark unless it is empty."""
    values: dict[str, str | int | None] = {**(view.span.query if view.span else {})}
    if view.by != COLOURINGS[0]:
        values["by"] = view.by
    filters = view.filters
    values |= {"policy": filters.policy_version, "request": filters.request, "run": filters.run}
    values |= {"kind": filters.kind, "reason": filters.reason, "outcome": filters.outcome}
    text = urllib.parse.urlencode({name: value for name, value in values.items() if value is not None})
    return f"?{text}" if text else ""
