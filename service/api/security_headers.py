"""Headers that every answer carries unless it says otherwise itself: not to be framed, sniffed or told to others."""

from __future__ import annotations

from litestar.types import Message, Scope

HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"x-frame-options": b"DENY",
    b"content-security-policy": b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""The policy is for answers that are no pages; pages have their own."""


async def add_headers(message: Message, _scope: Scope) -> None:
    """Litestar's `before_send`: runs for every answer, refusals included."""
    if message["type"] != "http.response.start":
        return
    sent = list(message["headers"])
    there = {name.lower() for name, _ in sent}
    message["headers"] = [*sent, *(header for header in HEADERS.items() if header[0] not in there)]
