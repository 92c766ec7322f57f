"""The service process: the Litestar application and `python -m service.app SETTINGS.json [LISTENER]`.

LISTENER is the number of an inherited socket that several workers accept connections from.
"""

from __future__ import annotations

from service.process import guard_child, install_stop_handler, leave

if __name__ == "__main__":
    guard_child()  # before the imports that take seconds: a supervisor may be killed while they run

import logging
import pathlib
import socket
import sys
from collections.abc import Sequence

import msgspec

from dashboard.app import create_dashboard
from dashboard.asgi import mount
from dashboard.reader.messages import Start
from dashboard.reader.reader import Reader
from service.api.application import create_app
from service.api.health import server_status
from service.api.http_server import create_server
from service.control.guards import GuardControl
from service.control.policy import PolicyControl
from service.control.preview.jobs import Previews
from service.credentials.errors import CredentialsUnusable
from service.ipc.client import EngineClient
from service.listening import listen
from service.model_source import ModelSourceError, resolve_model
from service.settings import Settings
from service.store.database import open_database
from service.store.errors import StoreError
from service.telemetry.tracing import start_tracing
from service.text import TextModelError, load_text_model

__all__ = ["create_app", "main"]

STOP_DEADLINE_S = 4.5
SPANS_S = 0.5
"""After everything else: how long the service's last spans may take."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM; 0 after an orderly stop, 2 when the settings cannot be served."""
    guard_child()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    args = list(sys.argv[1:] if arguments is None else arguments)
    if len(args) not in (1, 2):
        return _refuse("usage: python -m service.app SETTINGS.json [LISTENER]")
    try:
        settings = msgspec.json.decode(pathlib.Path(args[0]).read_bytes(), type=Settings)
    except (OSError, msgspec.MsgspecError) as error:
        return _refuse(f"cannot read the settings in {args[0]}: {error}")
    try:
        sock = socket.socket(fileno=int(args[1])) if len(args) > 1 else listen(settings.host, settings.port)
    except OSError as error:
        return _refuse(_cannot_listen(settings, error))
    with sock:
        try:
            text_model, store = load_text_model(resolve_model(settings.model)), open_database(settings.database)
        except (ModelSourceError, TextModelError, StoreError) as error:
            return _refuse(str(error))
        tracing = start_tracing(settings)
        engine = EngineClient(settings.engine_endpoint)
        control = PolicyControl(store, engine.configure_policy, tracer=tracing.tracer)

        async def status() -> list[str]:
            reasons, warnings = await server_status(app.state["context"])
            return [*reasons, *warnings]

        reader = Reader(Start(settings.database, str(settings.previews_dir), settings.mixed_prefill))
        previews = Previews(settings.previews_dir, settings.database, store)
        dashboard = create_dashboard(
            engine=store,
            control=control,
            status=status,
            guards=GuardControl(control),
            previews=previews,
            mixed_prefill=settings.mixed_prefill,
        )
        try:
            app = create_app(
                settings,
                text_model=text_model,
                engine_client=engine,
                store_engine=store,
                control=control,
                tracer=tracing.tracer,
                previews=previews,
                mounts=[mount(dashboard, reader)],
            )
        except CredentialsUnusable as error:
            return _refuse(str(error))
        server = create_server(app)
        install_stop_handler(lambda: setattr(server, "should_exit", True), STOP_DEADLINE_S)
        server.run(sockets=[sock])
        reader.close()
        store.dispose()
        tracing.stop(SPANS_S)
    return 0


def _cannot_listen(settings: Settings, error: OSError) -> str:
    return (
        f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}. "
        "Stop what uses the port or choose another one with --port"
    )


def _refuse(message: str) -> int:
    sys.stderr.write(f"{message}\n")
    return 2


if __name__ == "__main__":
    leave(main())
