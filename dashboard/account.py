"""Who is signed in, in the header, and the way out. Nothing where no credentials are asked for."""

from __future__ import annotations

from typing import Any

from dash import html

from dashboard.caller import caller
from dashboard.markup import aria

SIGN_OUT_PATH = "/logout"


def account() -> list[Any]:
    """A link for the header with the caller's name and role, which leads to signing out; or nothing."""
    who = caller()
    if who is None:
        return []
    words = f"Signed in as {who.name}, {who.role}. Sign out"
    parts = [
        html.Span(who.name, className="account-name"),
        html.Span(str(who.role), className="account-role"),
        html.Span("Sign out", className="account-out"),
    ]
    return [html.A(parts, href=SIGN_OUT_PATH, className="account", title=words, **aria(label=words))]
