"""What a user's files and options can get wrong."""

from __future__ import annotations

from scheduler.errors import SchedulerError


class SimulationError(SchedulerError, ValueError):
    """An input that cannot be simulated; the text names the file, the line and what is allowed."""


class InvalidTable(SimulationError):
    """A CSV file without a needed column, without rows, or with a value out of range."""


class StuckSimulation(SimulationError):
    """Requests wait, nothing runs and nothing is to come, yet the batcher plans nothing."""
