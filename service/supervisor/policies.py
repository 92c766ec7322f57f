"""The policy of the next engine: what the store says, or what was in force before while the store cannot be asked."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from scheduler.errors import InvalidPolicy
from scheduler.policy import COEFFICIENTS, PolicyConfig
from service.settings import Settings
from service.supervisor.errors import StartRefused, StoreRefused
from service.telemetry.metric_table import METRIC_BY_NAME
from service.telemetry.shared import Snapshot, series_values

Coefficients = dict[str, float | int | str]
FirstPolicy = tuple[int, Coefficients]
"""The version and coefficients that a new engine starts with."""

FindPolicy = Callable[[Settings], FirstPolicy]
"""Finds them in the store; raises StartRefused."""


class Chosen(NamedTuple):
    """What an engine starts with. `complaint`: why the store could not say, None where it did."""

    version: int
    coefficients: Coefficients
    complaint: str | None


class Policies:
    """Knows the policy in force, so that an engine that has ended can be replaced without the store.

    `settings`: as the store is asked for the first engine; `later`: for those after it. `patience_s`: how long it is
    waited for then. An answer that comes later is dropped.
    """

    def __init__(self, find: FindPolicy, settings: Settings, later: Settings, patience_s: float) -> None:
        self._find = find
        self._settings = settings
        self._later = later
        self._patience_s = patience_s
        self._first: FirstPolicy | None = None
        self._given: FirstPolicy | None = None
        self._seen: FirstPolicy | None = None

    def find_first(self) -> None:
        """Ask the store for the first engine's policy. Raises StartRefused."""
        self._first = self._find(self._settings)

    def choose(self) -> Chosen:
        """The next engine's policy. Raises StartRefused where the store cannot say and none was in force before."""
        found, self._first = self._first, None
        complaint = None
        if found is None:
            try:
                found = self._asked()
            except StartRefused as error:
                found, complaint = self._in_force, str(error)
                if found is None:
                    raise
        self._given, self._seen = found, None
        return Chosen(*found, complaint)

    def note(self, engine: Snapshot | None) -> None:
        """What an engine tells of itself, or told last: its policy may have been changed since it was started."""
        used = None if engine is None else used_policy(engine)
        if used is not None:
            self._seen = used

    @property
    def _in_force(self) -> FirstPolicy | None:
        """What the last engine used: as it was given, which gauges may round, unless they tell another version."""
        given, seen = self._given, self._seen
        return given if seen is None or given is None or seen[0] == given[0] else seen

    def _asked(self) -> FirstPolicy:
        """What the store says within the time limit. Raises StartRefused."""
        answers: queue.SimpleQueue[FirstPolicy | Exception] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put(self._find(self._later))
            except Exception as error:  # handed over, to be raised on the thread that asked
                answers.put(error)

        threading.Thread(target=ask, name="policy", daemon=True).start()
        try:
            answer = answers.get(timeout=self._patience_s)
        except queue.Empty:
            raise StoreRefused(f"the trace store did not answer within {self._patience_s:g} s") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def used_policy(engine: Snapshot) -> FirstPolicy | None:
    """The policy that an engine's gauges tell; None before it has one."""

    def value(name: str, *labels: str) -> float:
        return series_values(METRIC_BY_NAME[name], labels, engine.slots)[0]

    version = int(value("flare_scheduler_policy_version"))
    info = METRIC_BY_NAME["flare_scheduler_policy_info"]
    names = next((labels for labels in info.series() if value(info.name, *labels)), None)
    if version < 1 or names is None:
        return None
    numbers: Coefficients = {c.name: value("flare_scheduler_policy", c.name) for c in COEFFICIENTS if not c.choices}
    texts: Coefficients = dict(zip(info.label_names, names, strict=True))
    try:
        return version, PolicyConfig.balanced().merged(numbers | texts).as_dict()
    except InvalidPolicy:  # looked at between two gauges
        return None
