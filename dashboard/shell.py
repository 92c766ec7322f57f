"""The frame around every page: header, navigation, colour scheme, and the place where pages appear."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import banner, ids
from dashboard.account import account
from dashboard.markup import aria
from dashboard.routing import OVERVIEW_PATH, PAGES

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Noto Sans', sans-serif"
MONOSPACE = "ui-monospace, 'Cascadia Mono', 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# Mantine's greys from text to background; its own are neutral, the page's are slightly blue.
DARK = ["#e6e9ed", "#c4cad1", "#9da7b3", "#78828e", "#434b54", "#353c44", "#24292f", "#1d2126", "#14171a", "#0f1215"]
THEME = {
    "primaryColor": "indigo",
    "fontFamily": FONT,
    "fontFamilyMonospace": MONOSPACE,
    "colors": {"dark": DARK},
    "defaultRadius": "sm",
    "autoContrast": True,
    "headings": {"fontFamily": FONT, "fontWeight": "600"},
}


def shell() -> Any:
    """The whole layout, for the present caller, with an empty page; the page follows the URL."""
    return dmc.MantineProvider(
        [
            dcc.Location(id=ids.URL, refresh="callback-nav"),
            dcc.Store(id=ids.NAV_MARK),
            html.A("Skip to the content", href=f"#{ids.PAGE}", className="skip-link"),
            html.Header(_header(), className="top-bar"),
            *banner.layout(),
            html.Main(html.Div("Loading…", className="loading"), id=ids.PAGE, className="page", tabIndex="-1"),
        ],
        theme=THEME,
        defaultColorScheme="auto",
    )


def _header() -> Any:
    return html.Div(
        [
            dcc.Link("Helios", href=OVERVIEW_PATH, className="brand"),
            html.Nav(
                [dcc.Link(page.title, href=page.path, className="nav-link") for page in PAGES],
                **aria(label="Pages"),
            ),
            html.Div(className="spacer"),
            *account(),
            dmc.ColorSchemeToggle(
                id=ids.SCHEME_TOGGLE,
                lightIcon=html.Span(className="half-moon"),
                darkIcon=html.Span(className="half-moon"),
                variant="subtle",
                color="gray",
                **aria(label="Switch between light and dark"),
            ),
        ],
        className="top-bar-inner",
    )


def message_page(title: str, text: str, *, link: tuple[str, str] | None = None) -> Any:
    """A page that only says something: not found, or the store cannot be read. `link` is (words, address)."""
    parts = [html.H1(title), html.P(text)]
    if link is not None:
        parts.append(html.P(dcc.Link(link[0], href=link[1])))
    return html.Section(parts, className="message-page")
