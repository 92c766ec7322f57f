"""The recorder's thread that deletes what the store may no longer keep; the sinks never wait for it."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy import exc

from service.recorder.pump import SinkUnavailable
from service.store.errors import StoreBusy, StoreError
from service.store.retention import Limits, Pruner

log = logging.getLogger(__name__)

IDLE_S = 60.0
RETRY_S = 10.0


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def there_is_room() -> None:
    """Of a store whose log has no limit."""


class Retention:
    """Looks once a minute whether something is to be deleted, and then deletes until nothing is, in small steps.

    `require_room` raises SinkUnavailable while the store's log must not grow.
    """

    def __init__(
        self,
        engine: sa.Engine,
        limits: Limits,
        stop: threading.Event,
        clock: Callable[[], dt.datetime] = _utc_now,
        require_room: Callable[[], None] = there_is_room,
    ) -> None:
        self._require_room = require_room
        self._pruner = Pruner(engine, limits)
        self._stop = stop
        self._clock = clock
        self._failed = False

    def run(self) -> None:
        """Until `stop`."""
        while not self._stop.wait(self.turn()):
            pass

    def turn(self) -> float:
        """One step. Returns the seconds to wait before the next."""
        try:
            self._require_room()
            done = self._pruner.step(self._clock())
        except (StoreBusy, SinkUnavailable):  # the sinks come first, and say so
            return RETRY_S
        except (StoreError, exc.SQLAlchemyError, OSError) as error:
            if not self._failed:
                log.warning("old rows cannot be deleted now, which is tried again: %s", error)
            self._failed = True
            return RETRY_S
        self._failed = False
        return IDLE_S if done.is_nothing else self._pruner.pause_s
