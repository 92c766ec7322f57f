"""Asks the service whether the whole server is ready, with a given engine run."""

from __future__ import annotations

import threading
from collections.abc import Callable

import requests

PAUSE_S = 0.1


class ReadinessProbe:
    """A thread that calls `on_ready(run_id)` once GET `url` answers 200 and names this run, then ends."""

    def __init__(self, url: str, run_id: str, on_ready: Callable[[str], None]) -> None:
        self._url = url
        self._run_id = run_id
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
                if self._answers(session):
                    self._on_ready(self._run_id)
                    return
                self._stopped.wait(PAUSE_S)

    def _answers(self, session: requests.Session) -> bool:
        try:
            answer = session.get(self._url, timeout=2)
            return answer.status_code == 200 and answer.json()["run_id"] == self._run_id
        except (requests.RequestException, ValueError, LookupError, TypeError):
            return False  # not listening yet, or something else listens
