"""The Litestar application: routes, errors, limits and the guard against other origins."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import pathlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import anyio
import sqlalchemy as sa
from litestar import Litestar
from litestar.datastructures import State
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.types import ControllerRouterHandler
from opentelemetry.trace import Tracer

from service.api.authentication import Authentication
from service.api.context import STORE_THREADS, TOKENIZE_THREADS, ApiContext
from service.api.control_spans import ControlSpans
from service.api.engine_port import EnginePort
from service.api.gate import Gate
from service.api.guard_keeper import guard_watch
from service.api.origins import OriginGuard, is_loopback
from service.api.policy_keeper import keep_policy
from service.api.problems import handle_exception
from service.api.routes import ROUTES
from service.api.scrapes import Scrapes
from service.api.security_headers import add_headers
from service.control.policy import PolicyControl
from service.control.preview.jobs import Previews
from service.credentials.key_ring import KeyRing
from service.settings import Settings
from service.telemetry.render import render
from service.telemetry.service_metrics import ServiceMetrics
from service.text import TextModel

MAX_BODY_BYTES = 4 << 20
CHANGE_GRACE_S = 1.5


def _version() -> str:
    try:
        return importlib.metadata.version("helios-serving")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def create_app(
    settings: Settings,
    *,
    text_model: TextModel,
    engine_client: EnginePort,
    store_engine: sa.Engine,
    control: PolicyControl,
    mounts: Sequence[ControllerRouterHandler] = (),
    tracer: Tracer | None = None,
    previews: Previews | None = None,
) -> Litestar:
    """The HTTP application. It starts and closes `engine_client`; the rest belongs to the caller.

    Raises CredentialsUnusable.

    `tracer` makes the spans of control calls; without it there are none.
    """
    spans = [] if tracer is None else [ControlSpans(tracer)]
    gate = _gate(settings)
    # Around the spans: nobody without a credential fills a collector, or puts a key into a span.
    asked = [] if gate is None else [Authentication(gate)]
    # A name that leads here by DNS rebinding brings no credential along.
    loopback_only = gate is None and is_loopback(settings.host)
    own_metrics = ServiceMetrics(settings.shared_service_metrics)

    def exposition(openmetrics: bool) -> bytes:
        paths = settings.engine_metrics_path, settings.recorder_metrics_path
        return render(*paths, own_metrics.shown, model=text_model.name, exemplars=openmetrics)

    context = ApiContext(
        settings=settings,
        text_model=text_model,
        engine=engine_client,
        store=store_engine,
        control=control,
        metrics=own_metrics,
        scrapes=Scrapes(exposition),
        started_at=int(time.time()),
        store_threads=anyio.CapacityLimiter(STORE_THREADS),
        tokenize_threads=anyio.CapacityLimiter(TOKENIZE_THREADS),
        previews=previews or Previews(settings.previews_dir, settings.database, store_engine),
        gate=gate,
    )
    return Litestar(
        [*ROUTES, *mounts],
        state=State({"context": context}),
        lifespan=[_lifespan(context)],
        middleware=[*asked, *spans, OriginGuard(loopback_only=loopback_only)],
        before_send=[add_headers],
        exception_handlers={Exception: handle_exception},
        request_max_body_size=MAX_BODY_BYTES,
        openapi_config=OpenAPIConfig(
            title="Helios", version=_version(), path="/schema", render_plugins=[JsonRenderPlugin(path="/openapi.json")]
        ),
        logging_config=None,
        debug=False,
    )


def _gate(settings: Settings) -> Gate | None:
    if settings.credentials_file is None:
        return None
    return Gate(KeyRing(pathlib.Path(settings.credentials_file)), protect_metrics=settings.protect_metrics)


def _lifespan(context: ApiContext) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    engine, control = context.engine, context.control

    def policy_trouble(what: str) -> None:
        context.policy_trouble = what

    @contextlib.asynccontextmanager
    async def running(_app: Litestar) -> AsyncIterator[None]:
        await engine.start()
        keepers = [
            asyncio.create_task(keep_policy(engine, control, policy_trouble), name="policy-keeper"),
            asyncio.create_task(guard_watch(context).run(), name="guard-watch"),
        ]
        try:
            yield
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(control.close(), CHANGE_GRACE_S)
            await context.asking.close()
            await engine.close()

    return running
