"""GET|POST /login and /logout: a form without a script, and the session cookie that it sets."""

from __future__ import annotations

import base64
import hashlib
import html
import urllib.parse
from typing import Any

from litestar import Request, Response, get, post
from litestar.response import Redirect

from service.api.context import context_of
from service.api.errors import TooManyFailures, Unauthenticated
from service.api.gate import Gate
from service.credentials.caller import Role
from service.credentials.sessions import SESSION_S

AnyRequest = Request[Any, Any, Any]
MAX_BODY_BYTES = 8 << 10
START = "/dashboard/"
NOT_FOR_PAGES = "This is a program's key, for /v1 alone. Sign in with a viewer's or an operator's key."
STYLE = """
:root { color-scheme: light dark; --line: #6b7480; --field: #fff; --problem: #b02525;
    --page: #eef0f4; --card: #fff; --rule: #d9dde3; --ink: #1b1f24 }
@media (prefers-color-scheme: dark) { :root { --line: #78828e; --field: #24292f;
    --problem: #ff9c9c; --page: #0f1215; --card: #1d2126; --rule: #353c44; --ink: #e6e9ed } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; padding: 12vh 12px 2rem }
body { background: var(--page); color: var(--ink) }
main { max-width: 24rem; margin: 0 auto; padding: 1.75rem; background: var(--card); border: 1px solid var(--rule);
    border-radius: 8px } a { color: inherit }
h1 { font-size: 1.4rem; margin: 0 0 .25rem } p { margin: 0 0 1.25rem }
label { display: block; font-weight: 600; margin-bottom: .35rem }
input, button { font: inherit; box-sizing: border-box; width: 100%; padding: .6rem .7rem; border-radius: 6px }
input { border: 1px solid var(--line); background: var(--field); color: inherit }
button { margin-top: 1rem; border: 1px solid transparent; background: #364fc7; color: #fff; font-weight: 600 }
button { cursor: pointer }
input:focus-visible, button:focus-visible, a:focus-visible { outline: 3px solid #748ffc; outline-offset: 2px }
.problem { color: var(--problem) } .hint { font-size: .875rem; margin: 1.25rem 0 0 }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title} · Helios</title>
<style>{style}</style>
</head>
<body><main>
{body}
</main></body>
</html>
"""
_LOGIN = """<h1>Helios</h1>
<p>Sign in to see and steer this server.</p>
{problem}
<form method="post" action="/login">
<input type="hidden" name="next" value="{next}">
<label for="key">Key</label>
<input id="key" name="key" type="password" required autofocus autocomplete="current-password" spellcheck="false">
<button type="submit">Sign in</button>
</form>
<p class="hint">A key comes from whoever runs the server (<code>helios keys add</code>).</p>"""
_LOGOUT = """<h1>Helios</h1>
<p>Sign out in this browser?</p>
<form method="post" action="/logout"><button type="submit">Sign out</button></form>
<p class="hint"><a href="/dashboard/">Back to the dashboard</a></p>"""


def local_address(text: str) -> str:
    """Where to go after signing in: a page of the dashboard and nothing else, so that no link leads elsewhere."""
    usable = text.startswith(START) and len(text) <= 4096 and text.isprintable() and "\\" not in text
    return text if usable else START


@get("/login", include_in_schema=False)
async def login_page(request: AnyRequest) -> Response[str]:
    """The form; where no credentials are asked for, the dashboard."""
    if context_of(request).gate is None:
        return Redirect(START)
    return _login(request.query_params.get("next", START))


@post("/login", include_in_schema=False, status_code=200, request_max_body_size=MAX_BODY_BYTES)
async def sign_in(request: AnyRequest) -> Response[str]:
    """Sets the session's cookie and goes on to the page that was asked for, or shows the form again."""
    gate = context_of(request).gate
    if gate is None:
        return Redirect(START)
    fields = _fields(await request.body())
    where = local_address(fields.get("next", START))
    client = request.scope.get("client")
    try:
        found = gate.sign_in(fields.get("key", "").strip(), client[0] if client else "unknown")
    except Unauthenticated as error:
        return _login(where, str(error), 401)
    except TooManyFailures as error:
        return _login(where, str(error), 429)
    if found.role is Role.CLIENT:
        return _login(where, NOT_FOR_PAGES, 403)
    return _leads(request, gate, where, gate.keys.new_session(found), SESSION_S)


@get("/logout", include_in_schema=False)
async def logout_page() -> Response[str]:
    """Asks; signing out changes something, so that a link alone cannot do it."""
    return _page("Sign out", _LOGOUT)


@post("/logout", include_in_schema=False, status_code=200, request_max_body_size=MAX_BODY_BYTES)
async def sign_out(request: AnyRequest) -> Response[str]:
    """Takes the cookie away."""
    gate = context_of(request).gate
    return Redirect(START) if gate is None else _leads(request, gate, "/login", "", 0)


def _fields(body: bytes) -> dict[str, str]:
    """The form's fields; of a body that is none, nothing."""
    try:
        return dict(urllib.parse.parse_qsl(body.decode("ascii"), max_num_fields=8))
    except ValueError:
        return {}


def _leads(request: AnyRequest, gate: Gate, where: str, session: str, seconds: int) -> Response[str]:
    # Behind a proxy with TLS only the browser knows; a program that says so harms nobody but itself.
    over_tls = request.scope["scheme"] == "https" or request.headers.get("origin", "").startswith("https://")
    secure = "; Secure" if over_tls else ""
    cookie = f"{gate.keys.cookie}={session}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    quoted = urllib.parse.quote(where, safe="/?&=%:+,;@!~*'()$-._")
    headers = {**_HEADERS, "Location": quoted, "Set-Cookie": cookie}
    return Response("", status_code=303, headers=headers, media_type="text/html")


def _login(where: str, problem: str = "", status: int = 200) -> Response[str]:
    told = f'<p class="problem" role="alert">{html.escape(problem)}</p>' if problem else ""
    return _page("Sign in", _LOGIN.format(problem=told, next=html.escape(local_address(where))), status)


def _page(title: str, body: str, status: int = 200) -> Response[str]:
    text = _PAGE.format(title=title, style=STYLE, body=body)
    return Response(text, status_code=status, headers=_HEADERS, media_type="text/html; charset=utf-8")
