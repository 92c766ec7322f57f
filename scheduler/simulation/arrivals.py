"""Who has arrived by now: the open loop's times, and later turns of sessions."""

from __future__ import annotations

import heapq
from collections import deque

from scheduler.simulation.workload import Arrival, Workload


class ArrivalQueue:
    """Arrivals by time (ties in trace order), and who waits for a slot, first come first."""

    def __init__(self, workload: Workload) -> None:
        self._arrivals = workload.arrivals
        self._next_turn = workload.next_turn
        self._to_come = [(a.time_ns, a.index) for a in workload.arrivals if a.time_ns is not None]
        heapq.heapify(self._to_come)
        self.waiting: deque[tuple[Arrival, int]] = deque()

    @property
    def next_ns(self) -> int | None:
        """When the next one arrives; None when nobody is known to come."""
        return self._to_come[0][0] if self._to_come else None

    def due(self, now_ns: int) -> list[tuple[Arrival, int]]:
        """Takes out who has arrived by `now_ns`, each with its time of arrival."""
        found = []
        while self._to_come and self._to_come[0][0] <= now_ns:
            time_ns, index = heapq.heappop(self._to_come)
            found.append((self._arrivals[index], time_ns))
        return found

    def ended(self, index: int, now_ns: int) -> None:
        """Request `index` has ended now; the session's next turn comes after its think time."""
        following = self._next_turn.get(index)
        if following is not None:
            heapq.heappush(self._to_come, (now_ns + self._arrivals[following].think_ns, following))
