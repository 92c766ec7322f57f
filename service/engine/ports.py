"""What the worker needs of the journal and of the connection to the service; tests put fakes here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from service.ipc.messages import Event, ToEngine
from service.journal.records import Record
from service.journal.status import JournalStatus

Clock = Callable[[], int]
"""CLOCK_MONOTONIC in ns."""


class Journal(Protocol):
    """Where decisions are written down. `service.journal.writer.JournalWriter` satisfies it."""

    @property
    def bytes_used(self) -> int:
        """Bytes of the journal's files on disk."""

    def status(self) -> JournalStatus:
        """What went wrong so far, and whether it still does."""

    def append(self, records: Sequence[Record], last_fence: int) -> None:
        """Hand the records to the operating system in one write."""

    def sync_if_due(self, now_ns: int) -> None:
        """Ask for a sync to disk when one is due; returns at once."""

    def close(self) -> None:
        """End the journal of this run."""


class Transport(Protocol):
    """The connection to the service's workers. `service.ipc.server.EngineServer` satisfies it."""

    malformed: int

    def receive(self) -> list[tuple[bytes, ToEngine]]:
        """Every message that waits, with its client."""

    def send(self, client: bytes, events: list[Event]) -> bool:
        """Hand events over; False when the client is gone."""

    def probe(self, client: bytes) -> bool:
        """Whether the client is still there."""

    def close(self) -> None:
        """Close the connection."""
