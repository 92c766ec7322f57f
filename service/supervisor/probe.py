"""Asks the service whether the whole server is ready."""

from __future__ import annotations

import threading
from collections.abc import Callable

import requests

PAUSE_S = 0.1


class ReadinessProbe:
    """A thread that calls `on_ready` once GET `url` answers 200, then ends."""

    def __init__(self, url: str, on_ready: Callable[[], None]) -> None:
        self._url = url
        self._on_ready = on_ready
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="readiness", daemon=True).start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def _run(self) -> None:
        with requests.Session() as session:
            session.trust_env = False  # a proxy for the outside world is not asked about this machine
            while not self._stopped.is_set():
                try:
                    if session.get(self._url, timeout=2).status_code == 200:
                        self._on_ready()
                        return
                except requests.RequestException:
                    pass  # not listening yet
                self._stopped.wait(PAUSE_S)
