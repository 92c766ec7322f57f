"""The control that chooses the span of time of a page: links that change the address and nothing else.

A page that shows a span reads it with `read_span(search, now)` and puts the control into its title row:

    span = read_span(search, dt.datetime.now(dt.UTC))
    span_picker(span, routing.COSTS_PATH, search)

There is no callback: a choice is another address, so the page is made anew for it, the back button works, and the
control can be used with the keyboard like any links. Everything else in the address stays, also what the page wrote
into it since it was made (assets/shell.js reads the address at the click); `drop` names values that another span makes
meaningless, such as a place in a list. A fixed span, which an address of `since` and `until` gives, is shown as it is
with a way back to the last hour; a moving one can be held, which turns it into a fixed one to send to a colleague.
"""

from __future__ import annotations

import datetime as dt
import urllib.parse
from collections.abc import Sequence
from typing import Any

from dash import html

from dashboard.formatting import utc
from dashboard.markup import aria
from dashboard.routing import path_with
from dashboard.span import DEFAULT, LAST, Span, last_length, last_words

_SHORT_UNITS = {"m": "min", "h": "h", "d": "d"}
SPAN_FIELDS = ("last", "since", "until")
MAX_FIELDS = 20
NO_TIME = dt.timedelta()


def span_picker(span: Span, path: str, search: str, *, drop: Sequence[str] = ()) -> Any:
    """The control of the page at `path` whose address has the query `search` and whose span is `span`."""
    kept = other_values(search, (*SPAN_FIELDS, *drop))
    choices = [
        _choice(
            short(last), path_with(path, **{**kept, "last": last}), drop, here=last == span.last, data={"last": last}
        )
        for last in offered(span.last)
    ]
    return html.Div(
        [
            *unread_note(span),
            *([] if span.last else _fixed(span, path, kept, drop)),
            html.Div(choices, className="span-choices"),
            *(_hold(span, path, kept, drop) if span.last else []),
        ],
        className="span-picker",
        role="group",
        **aria(label="Span of time"),
    )


def offered(last: str | None) -> list[str]:
    """The lengths to choose from, in order; the one in use is among them."""
    own = [last] if last is not None and last not in LAST else []
    return sorted([*LAST, *own], key=lambda one: last_length(one) or NO_TIME)


def short(last: str) -> str:
    """A length as a choice: `15 min`."""
    return f"{last[:-1]} {_SHORT_UNITS[last[-1]]}"


def unread_note(span: Span) -> list[Any]:
    """Says that the address asked for a span that nobody can read, and which one is shown instead."""
    if span.unread is None:
        return []
    text = f"“{span.unread}” is no span of time (last=90m, or since and until); this is {span.words}."
    return [html.Span(text, className="span-unread bad", role="status")]


def other_values(search: str, without: Sequence[str]) -> dict[str, str]:
    """What a query holds besides the names of `without`, the first value of each name; {} where it cannot be read."""
    try:
        found = urllib.parse.parse_qsl(search.removeprefix("?"), max_num_fields=MAX_FIELDS)
    except ValueError:
        return {}
    return {name: value for name, value in reversed(found) if name not in without}


def _fixed(span: Span, path: str, kept: dict[str, str], drop: Sequence[str]) -> list[Any]:
    back = path_with(path, **{**kept, "last": DEFAULT})
    return [
        html.Span(f"{utc(span.since).removesuffix(' UTC')} to {utc(span.until)}", className="span-fixed digits"),
        _choice("Show the last hour", back, drop, data={"last": DEFAULT}, kind="span-leave"),
    ]


def _hold(span: Span, path: str, kept: dict[str, str], drop: Sequence[str]) -> list[Any]:
    fixed = Span(span.since.replace(microsecond=0), span.until.replace(microsecond=0)).query
    title = (
        f"Keep the times of the {last_words(span.last or DEFAULT)} shown in the address, to send them to a colleague"
    )
    return [_choice("Hold", path_with(path, **{**kept, **fixed}), drop, data=fixed, kind="span-leave", title=title)]


def _choice(
    words: str,
    href: str,
    drop: Sequence[str],
    *,
    data: dict[str, str],
    here: bool = False,
    kind: str = "span-choice",
    title: str | None = None,
) -> Any:
    """A link whose click assets/shell.js turns into a change of the address, without a reload."""
    marks = {f"data-{name}": value for name, value in data.items()} | {"data-drop": " ".join(drop)}
    current = aria(current="true") if here else {}
    more: dict[str, Any] = {**({"title": title} if title else {}), **current, **marks}
    return html.A(words, href=href, className=f"{kind} here" if here else kind, **more)
