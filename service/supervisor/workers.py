"""What several workers of the service share: the socket that they accept from, and the folder of their metrics.

The supervisor holds the socket, so that a connection waits while a worker is started again and is taken by another
one while a worker hangs. One worker binds its own.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Mapping

from service.listening import listen
from service.settings import Settings
from service.supervisor.errors import DataDirUnusable, PortInUse
from service.supervisor.supervision import SERVICE, Role
from service.telemetry.service_metrics import MULTIPROCESS_VARIABLE

BACKLOG = 2048
"""Connections that may wait, as many as uvicorn asks for."""


class SharedByWorkers:
    """Nothing at all where there is one worker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._listener: socket.socket | None = None

    def prepare(self) -> None:
        """Listen, and begin to count at zero. Raises PortInUse or DataDirUnusable."""
        folder = self._settings.shared_service_metrics
        if folder is None:
            return
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        except OSError as error:
            raise DataDirUnusable(f"cannot make {folder}: {error.strerror}; choose another --data-dir") from error
        host, port = self._settings.host, self._settings.port
        try:
            self._listener = listen(host, port)
            self._listener.listen(BACKLOG)
        except OSError as error:
            self.close()
            raise PortInUse(f"cannot listen on {host} port {port}: {error.strerror or error}") from error

    def command(self, role: Role) -> tuple[str, ...]:
        """What follows a process's settings on its command line."""
        return () if self._listener is None or role.kind != SERVICE else (str(self._listener.fileno()),)

    def descriptors(self, role: Role) -> tuple[int, ...]:
        """What the process inherits."""
        return () if self._listener is None or role.kind != SERVICE else (self._listener.fileno(),)

    def environment(self, role: Role, inherited: Mapping[str, str]) -> dict[str, str]:
        """The process's environment; only workers that share their metrics are told where."""
        own = {name: value for name, value in inherited.items() if name != MULTIPROCESS_VARIABLE}
        folder = self._settings.shared_service_metrics
        if folder is not None and role.kind == SERVICE:
            own[MULTIPROCESS_VARIABLE] = str(folder)
        return own

    def close(self) -> None:
        """Refuse new connections once no worker accepts them any more. Idempotent."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.close()
            self._listener = None
