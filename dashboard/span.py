"""The span of time that a page shows, as its address says it.

`?last=1h` is a window that ends now and moves on; `?since=…&until=…` (RFC 3339) is one that stands still, which is
what a colleague is sent. Without either, or where they cannot be read, a page shows its own default.
"""

from __future__ import annotations

import dataclasses
import datetime as dt

from dashboard.formatting import utc
from dashboard.routing import first

LAST = {
    "5m": dt.timedelta(minutes=5),
    "15m": dt.timedelta(minutes=15),
    "1h": dt.timedelta(hours=1),
    "6h": dt.timedelta(hours=6),
    "24h": dt.timedelta(hours=24),
    "7d": dt.timedelta(days=7),
}
WORDS = {
    "5m": "5 minutes",
    "15m": "15 minutes",
    "1h": "hour",
    "6h": "6 hours",
    "24h": "24 hours",
    "7d": "7 days",
}
DEFAULT = "1h"
EARLIEST = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LATEST = dt.datetime(2262, 1, 1, tzinfo=dt.UTC)
"""Nothing is recorded outside, and a page may look a little earlier or later than its span says."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """From `since` up to `until`, both in UTC; `last` is a key of LAST where the span ends now and moves on."""

    since: dt.datetime
    until: dt.datetime
    last: str | None = None

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.until - self.since).total_seconds()

    @property
    def words(self) -> str:
        """For a heading: `the last hour`, or both ends."""
        return f"the last {WORDS[self.last]}" if self.last else f"{utc(self.since)} to {utc(self.until)}"

    @property
    def query(self) -> dict[str, str]:
        """What an address needs to mean this span."""
        if self.last:
            return {"last": self.last}
        return {"since": self.since.isoformat(), "until": self.until.isoformat()}


def last_span(last: str, now: dt.datetime) -> Span:
    """The window of a key of LAST that ends at `now`."""
    return Span(now - LAST[last], now, last)


def read_span(search: str, now: dt.datetime, default: str = DEFAULT) -> Span:
    """The span of an address's query, within EARLIEST and LATEST."""
    since, until = _time(first(search, "since")), _time(first(search, "until"))
    if since is not None and since < (until or now):
        return Span(since, until or now)
    last = first(search, "last")
    return last_span(last if last in LAST else default, now)


def _time(text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
        aware = (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
        return min(max(aware, EARLIEST), LATEST)
    except (ValueError, OverflowError):
        return None
