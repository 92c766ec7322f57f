"""The recorder's thread that keeps house: it deletes what the store may no longer keep, and on PostgreSQL makes the
partitions of the next days. The sinks never wait for it.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy import exc

from service.recorder.pump import SinkUnavailable
from service.store.errors import StoreBusy, StoreError
from service.store.partitions import add_days_ahead, analyze_new_days, utc_day
from service.store.retention import Limits, Pruner

log = logging.getLogger(__name__)

IDLE_S = 60.0
RETRY_S = 10.0


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def there_is_room() -> None:
    """Of a store whose log has no limit."""


class Retention:
    """Once a minute makes days, has new ones analysed, and deletes until nothing is left to delete, in small steps.

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
        self._engine = engine
        self._days_made: tuple[dt.date, bool] | None = None
        self._days_due = dt.datetime.min.replace(tzinfo=dt.UTC)
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
            now = self._clock()
            self._make_days(now)
            done = self._pruner.step(now)
            if done.is_nothing:
                analyze_new_days(self._engine)
        except (StoreBusy, SinkUnavailable):  # the sinks come first, and say so
            return RETRY_S
        except (StoreError, exc.SQLAlchemyError, OSError) as error:
            if not self._failed:
                log.warning("old rows cannot be deleted or days be made now, which is tried again: %s", error)
            self._failed = True
            return RETRY_S
        self._failed = False
        return IDLE_S if done.is_nothing else self._pruner.pause_s

    def _make_days(self, now: dt.datetime) -> None:
        """The partitions of today and the days behind it, once a day; every RETRY_S while one cannot be made."""
        today = utc_day(now)
        tried = self._days_made is not None and self._days_made[0] == today
        if self._days_made == (today, True) or (tried and now < self._days_due):
            return
        made = add_days_ahead(self._engine, today)
        if not made and not tried:
            log.warning("the days ahead get no partitions now, which is tried again; their plans go to plans_default")
        self._days_made, self._days_due = (today, made), now + dt.timedelta(seconds=RETRY_S)
