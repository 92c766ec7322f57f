"""Two small bridges to Dash that the pages share."""

from __future__ import annotations

from typing import Any

import dash


def aria(**attributes: str) -> dict[str, Any]:
    """ARIA attributes as keyword arguments of a component: `html.Nav(…, **aria(label="Pages"))`."""
    return {f"aria-{name}": value for name, value in attributes.items()}


def in_browser(app: dash.Dash, function: str, *dependencies: Any, first_call: bool = True) -> None:
    """Registers `window.dash_clientside.helios.<function>` (assets/*.js) as the callback of these dependencies."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        dash.ClientsideFunction("helios", function), *dependencies, prevent_initial_call=not first_call
    )
