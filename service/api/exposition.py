"""GET and HEAD /metrics, in the form that the scraper asks for."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, route
from litestar.datastructures import Headers
from litestar.enums import HttpMethod

from service.api.context import context_of
from service.api.scrapes import Form
from service.telemetry.render import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE


def form_asked(headers: Headers) -> Form:
    """What Accept and Accept-Encoding ask for: OpenMetrics where it is named and liked no less than plain text."""
    types = _preferences(headers, "accept")
    openmetrics = types.get("application/openmetrics-text", 0.0)
    plain = max(types.get(name, 0.0) for name in ("text/plain", "text/*", "*/*"))
    codings = _preferences(headers, "accept-encoding")
    return Form(openmetrics > 0 and openmetrics >= plain, codings.get("gzip", codings.get("*", 0.0)) > 0)


def _preferences(headers: Headers, name: str) -> dict[str, float]:
    """The best quality for each named value, parameters but `q` left out; a quality that is none counts as 0."""
    found: dict[str, float] = {}
    for part in ",".join(headers.getall(name, [])).split(","):
        value, *parameters = (word.strip().lower() for word in part.split(";"))
        qualities = [word[2:] for word in parameters if word.startswith("q=")]
        found[value] = max(found.get(value, 0.0), _quality(qualities[0]) if qualities else 1.0)
    return found


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0


@route("/metrics", http_method=[HttpMethod.GET, HttpMethod.HEAD], tags=["health"])
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The metrics of all three processes, as Prometheus or, where that is asked for, OpenMetrics text."""
    form = form_asked(request.headers)
    headers = {
        "content-type": OPENMETRICS_CONTENT_TYPE if form.openmetrics else CONTENT_TYPE,
        "vary": "Accept, Accept-Encoding",
        **({"content-encoding": "gzip"} if form.compressed else {}),
    }
    return Response(await context_of(request).scrapes.body(form), headers=headers, media_type=headers["content-type"])
