"""GET /api/catalog and /api/ledgers: what is known of graph durations, and what exploration has cost."""

from __future__ import annotations

from typing import Any

from litestar import Response, get

from service.api.context import context_of
from service.api.responses import json_response
from service.api.trace_routes import AnyRequest, filters_of
from service.store.catalog import read_catalog
from service.store.ledgers import list_ledgers

CATALOG_FILTERS = ("run", "since", "until", "kind")
LEDGER_FILTERS = ("run", "since", "until", "limit")


@get("/api/catalog", tags=["trace"])
async def get_catalog(request: AnyRequest) -> Response[bytes]:
    """The graphs of a run (by default the newest) with their estimates as of `as_of`, in the catalog's order, and their
    sums over the minutes of since to until. Filters: run, since, until, kind.
    """
    found: dict[str, Any] = filters_of(request, CATALOG_FILTERS)
    context = context_of(request)
    catalog = await context.read_store(read_catalog, **found)
    return json_response(
        {
            "run_id": catalog.run_id,
            "as_of": catalog.as_of,
            "source": catalog.source or None,
            "items": catalog.rows,
            "next": None,
        }
    )


@get("/api/ledgers", tags=["trace"])
async def get_ledgers(request: AnyRequest) -> Response[bytes]:
    """The exploration ledgers at the end of each minute and run, newest first: a run's first entry is its newest.
    Filters: run, since, until, limit (minutes, to 1,000).
    """
    found: dict[str, Any] = filters_of(request, LEDGER_FILTERS)
    context = context_of(request)
    return json_response({"items": await context.read_store(list_ledgers, **found), "next": None})
