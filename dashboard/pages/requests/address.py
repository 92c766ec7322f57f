"""What the address of the Requests page asks for, and the addresses of its other views."""

from __future__ import annotations

import datetime as dt
import re

from dashboard.queries.requests import DEFAULT_ORDER, MOST_PAGES, ORDERS, Wanted
from dashboard.routing import MAX_REQUEST, REQUESTS_PATH, first, path_with
from dashboard.span import Span, read_span
from service.store.queries import FINISHES

FIELDS = ("q", "model", "finish", "run", "order", "page")
MAX_RUN = 600


def read_address(search: str, now: dt.datetime) -> Wanted:
    """The requests that a query asks for; what cannot be read counts as not asked for."""
    finish, order, page = first(search, "finish"), first(search, "order"), first(search, "page")
    number = int(page) if page is not None and re.fullmatch(r"[0-9]{1,9}", page, flags=re.ASCII) else 1
    return Wanted(
        span=read_span(search, now),
        text=_text(search, "q", MAX_REQUEST),
        model=_text(search, "model", MAX_REQUEST),
        finish=finish if finish in FINISHES else None,
        run=_text(search, "run", MAX_RUN),
        order=order if order in ORDERS else DEFAULT_ORDER,
        page=min(max(number, 1), MOST_PAGES),
    )


def address_of(wanted: Wanted, *, page: int = 1, still: bool = False) -> str:
    """The address of a page of what is asked for. `still`: its span ends where it ends now, so that pages fit."""
    span = Span(wanted.span.since, wanted.span.until) if still else wanted.span
    return path_with(
        REQUESTS_PATH,
        q=wanted.text,
        model=wanted.model,
        finish=wanted.finish,
        run=wanted.run,
        order=None if wanted.order == DEFAULT_ORDER else wanted.order,
        page=None if page == 1 else page,
        **span.query,
    )


def _text(search: str, name: str, longest: int) -> str | None:
    value = (first(search, name) or "").strip()
    return value if value and value.isprintable() and len(value) <= longest else None
