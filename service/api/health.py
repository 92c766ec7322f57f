"""GET /health/live, /health/ready, which is /health too, and /."""

from __future__ import annotations

import datetime as dt
import pathlib
import time
from typing import Any

import anyio
import anyio.to_thread
from litestar import Request, Response, get
from litestar.response import Redirect

from service.api.context import ApiContext, context_of
from service.api.responses import json_response
from service.control.fit import misfit
from service.journal.status import CAUSES, WARNINGS
from service.store.gaps import count_gaps_since
from service.store.liveness import REPLACED, was_replaced
from service.telemetry.metric_table import METRIC_BY_NAME
from service.telemetry.shared import MetricsReader, series_values

STORE_PATIENCE_S = 2.0
SILENT_NS = 5_000_000_000
"""A heartbeat older than this is stale; the engine's loop beats every half second, whatever its programs do."""
LAG_S = 5.0
"""An undelivered record older than this makes a warning."""
GAPS_FOR = dt.timedelta(hours=1)
"""How long a gap in the trace is told after it was noticed."""
UNREACHABLE = "the trace store is unreachable: records wait in the journal, and policy changes are refused"
_ENGINE_REASONS = {
    "starting": "the engine is starting",
    "down": "the engine is down; a new one is being started",
    "stopping": "the engine is stopping",
}


@get("/health/live", tags=["health"])
async def live() -> Response[bytes]:
    """This process answers."""
    return json_response({"status": "live"})


@get(["/health/ready", "/health"], tags=["health"])
async def ready(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Whether requests are answered now; 503 with the reasons if not. Load generators ask for it at /health.

    `warnings` are for people: a server that loses its trace still serves, so a load balancer must keep it.
    """
    context = context_of(request)
    reasons, warnings = await server_status(context)
    body = {
        "status": "unready" if reasons else "ready",
        "reasons": reasons,
        "warnings": warnings,
        "model": context.text_model.name,
    }
    if context.engine.ready is not None:
        body["run_id"] = context.engine.ready.run_id
    headers = {"Retry-After": "2"} if reasons else {}
    return json_response(body, status=503 if reasons else 200, headers=headers)


async def server_status(context: ApiContext) -> tuple[list[str], list[str]]:
    """Why requests are not answered now, and what people should know besides; both empty when all is well."""
    reasons = [] if not context.stopping else ["the server is shutting down"]
    if context.engine.state != "ready" or context.engine.ready is None:
        reasons.append(_ENGINE_REASONS.get(context.engine.state, "the engine is not ready"))
    elif _is_silent(context.settings.engine_metrics_path):
        reasons.append("the engine does not answer")
    replaced = was_replaced(context.store)
    gaps = None if replaced else await _recent_gaps(context)
    warnings = [
        *([REPLACED] if replaced else []),
        *([UNREACHABLE] if not replaced and gaps is None else []),
        *([context.gate.keys.problem] if context.gate is not None and context.gate.keys.problem else []),
        *([context.policy_trouble] if context.policy_trouble and not replaced else []),
        *_policy_warnings(context),
        *_trace_warnings(context.settings.engine_metrics_path),
        *_store_warnings(context.settings.recorder_metrics_path),
        *_gap_warnings(gaps),
    ]
    return reasons, warnings


def _policy_warnings(context: ApiContext) -> list[str]:
    """What the policy that the engine uses lacks on this server."""
    used = context.control.used
    found = None if used is None else misfit(used, mixed_prefill=context.settings.mixed_prefill)
    return [] if found is None else [found]


def _is_silent(metrics: pathlib.Path) -> bool:
    """Whether the file's writer is there but has stopped moving: a hung or stopped process keeps its connections."""
    beat = MetricsReader(metrics).heartbeat()
    return beat is not None and time.monotonic_ns() - beat.at_ns > SILENT_NS


async def _recent_gaps(context: ApiContext) -> int | None:
    """See count_gaps_since; None when the store does not answer in time."""
    since = dt.datetime.now(dt.UTC) - GAPS_FOR
    try:
        with anyio.fail_after(STORE_PATIENCE_S):
            # A thread that hangs on a dead network is left behind rather than waited for.
            return await anyio.to_thread.run_sync(count_gaps_since, context.store, since, abandon_on_cancel=True)
    except Exception:
        return None


def _gap_warnings(gaps: int | None) -> list[str]:
    hour = f"{GAPS_FOR.total_seconds() / 3600:.0f} h"
    if not gaps:
        return []
    return [
        f"records of the trace are missing: {gaps} {'gap' if gaps == 1 else 'gaps'} in the last {hour}, see trace_gaps"
    ]


def _trace_warnings(engine_metrics: pathlib.Path) -> list[str]:
    """What the engine's counters say about its journal now; a dead engine says nothing.

    Takes about 0.2 ms, so it needs no thread; a store that hangs may have taken all of those.
    """
    snapshot = MetricsReader(engine_metrics).read()
    if snapshot is None:
        return []
    trouble = METRIC_BY_NAME["flare_journal_trouble"]
    return [WARNINGS[cause] for cause in CAUSES if series_values(trouble, (cause,), snapshot.slots)[0]]


def _store_warnings(recorder_metrics: pathlib.Path) -> list[str]:
    """What the recorder's gauges say about its way to the store; one that is being started again says nothing."""
    snapshot = MetricsReader(recorder_metrics).read()
    if snapshot is None:
        return []
    if time.monotonic_ns() - snapshot.heartbeat_ns > SILENT_NS:
        return ["the recorder does not answer: the trace waits in the journal"]
    lag_s = series_values(METRIC_BY_NAME["flare_trace_lag_seconds"], ("sql",), snapshot.slots)[0]
    return [f"the trace store is {lag_s:.0f} s behind: its records wait in the journal"] if lag_s > LAG_S else []


@get("/", include_in_schema=False)
async def index() -> Redirect:
    """The dashboard."""
    return Redirect("/dashboard/")
