"""What a page of the dashboard may load and run: what this server serves, and nothing of what a name could smuggle in.

- Scripts: files of this server, and the few inline ones that Dash writes into the index page, each by its hash.
- Styles: also inline ones. Mantine writes its theme, Plotly and AG Grid their rules, into style elements that they
  make in the browser, without a nonce or a hash that could be known; a style cannot run a script.
- Images: also `data:` and `blob:`, which charts are when they are saved. Fonts: also `data:`, AG Grid's icons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from litestar.types import HTTPResponseStartEvent, Message, Send

NOTHING = b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""For what is no page, should somebody open it as one."""
_PAGE = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_OTHERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


def page_policy(hashes: Iterable[str]) -> bytes:
    """The Content-Security-Policy of a page whose inline scripts have these hashes (as `'sha256-…'`)."""
    return _PAGE.format(scripts="".join(f" {one}" for one in hashes)).encode()


def guarded(send: Send, hashes: Callable[[], Iterable[str]]) -> Send:
    """A `send` that adds the headers. `hashes` gives those of the scripts that Dash knows to be its own.

    They are not taken from the page's text: what slipped into that would be trusted too.
    """

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            policy = page_policy(hashes()) if _is_page(message) else NOTHING
            message["headers"] = [*message["headers"], *_OTHERS, (b"content-security-policy", policy)]
        await send(message)

    return sending


def _is_page(start: HTTPResponseStartEvent) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in start["headers"])
