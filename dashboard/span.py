"""The span of time that a page shows, as its address says it.

`?last=1h` is a window that ends now and moves on, of minutes, hours or days (`90m`, `12h`, `30d`); `?since=…&until=…`
(RFC 3339) is one that stands still, which is what a colleague is sent. Without either a page shows its own default;
where what is asked cannot be read, too, and the page says so.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re

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
DEFAULT = "1h"
EARLIEST = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LATEST = dt.datetime(2262, 1, 1, tzinfo=dt.UTC)
"""Nothing is recorded outside, and a page may look a little earlier or later than its span says."""
LONGEST_LAST = dt.timedelta(days=3660)
_UNITS = {
    "m": (dt.timedelta(minutes=1), "minute"),
    "h": (dt.timedelta(hours=1), "hour"),
    "d": (dt.timedelta(days=1), "day"),
}
_LAST = re.compile(r"([1-9][0-9]{0,6})([mhd])", flags=re.ASCII)
MOST_SAID = 80


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """From `since` up to `until`, both in UTC; `last` is its length (`90m`) where the span ends now and moves on.

    `unread`: what the address said instead of a span, where that could not be read and this is the page's own.
    """

    since: dt.datetime
    until: dt.datetime
    last: str | None = None
    unread: str | None = None

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.until - self.since).total_seconds()

    @property
    def words(self) -> str:
        """For a heading: `the last hour`, or both ends."""
        return f"the last {last_words(self.last)}" if self.last else f"{utc(self.since)} to {utc(self.until)}"

    @property
    def query(self) -> dict[str, str]:
        """What an address needs to mean this span."""
        if self.last:
            return {"last": self.last}
        return {"since": self.since.isoformat(), "until": self.until.isoformat()}


def last_length(last: str) -> dt.timedelta | None:
    """How long `last` says, up to LONGEST_LAST; None where that cannot be read."""
    match = _LAST.fullmatch(last)
    length = int(match[1]) * _UNITS[match[2]][0] if match else None
    return length if length is not None and length <= LONGEST_LAST else None


def last_words(last: str) -> str:
    """For people: `hour`, `90 minutes`."""
    number, unit = last[:-1], _UNITS[last[-1]][1]
    return unit if number == "1" else f"{number} {unit}s"


def last_span(last: str, now: dt.datetime) -> Span:
    """The window that ends at `now` and is as long as `last` says. Raises ValueError where that cannot be read."""
    length = last_length(last)
    if length is None:
        raise ValueError(f"not a length of time: {last!r}")
    return Span(now - length, now, last)


def read_span(search: str, now: dt.datetime, default: str = DEFAULT) -> Span:
    """The span of an address's query, within EARLIEST and LATEST; `default` where it has none that can be read."""
    given = {name: text for name in ("since", "until", "last") if (text := first(search, name)) is not None}
    since, until = _time(given.get("since")), _time(given.get("until"))
    if since is not None and since < (until or now):
        return Span(since, until or now)
    last = given.get("last")
    is_read = last is not None and last_length(last) is not None
    span = last_span(last if last is not None and is_read else default, now)
    if not given or (is_read and given.keys() == {"last"}):
        return span
    said = "&".join(f"{name}={text}" for name, text in given.items())
    return dataclasses.replace(span, unread=said if len(said) <= MOST_SAID else f"{said[:MOST_SAID]}…")


def _time(text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
        aware = (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
        return min(max(aware, EARLIEST), LATEST)
    except (ValueError, OverflowError):
        return None
