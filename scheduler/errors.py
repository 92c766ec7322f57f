"""Typed errors of the scheduler.

    SchedulerError
    ├── InvalidShape          a graph shape outside its bounds
    ├── InvalidCatalog        an empty catalog, or one shape twice
    ├── InvalidPolicy         a coefficient that is unknown, not finite or out of range
    ├── InvalidRequest        a request description that contradicts itself
    ├── AdmissionError
    │   ├── SlotsFull         every request slot is taken; try again after a request ends
    │   ├── DuplicateRequest  the request id is already resident
    │   ├── RequestTooLong    prompt plus one output token exceed the request's context capacity
    │   ├── Unservable        no prepared graph can ever serve it
    │   └── SnapshotPending   the request that it continues has no published snapshot yet; try again soon
    ├── UnknownHandle         a handle whose request has ended or never existed
    ├── StalePlan             state moved on between plan() and commit()
    ├── InvalidFence          a fence that does not rise, or that is not in flight
    ├── InvalidCompletion     records or timing that cannot belong to the committed plan
    ├── InvalidObservation    a duration or time outside its range
    ├── InvalidCheckpoint     bytes that restore() cannot read, or of another catalog
    └── ClockWentBack         advance_to() with an earlier time

Every error leaves the scheduler's state as it was before the call.
"""

from __future__ import annotations


class SchedulerError(Exception):
    """Base of every error that the scheduler raises on purpose."""


class InvalidShape(SchedulerError, ValueError):
    """A graph shape outside its bounds."""


class InvalidCatalog(SchedulerError, ValueError):
    """An empty catalog, or one that holds a shape twice."""


class InvalidPolicy(SchedulerError, ValueError):
    """Policy coefficients that cannot be used.

    `problems` maps each offending coefficient to what is wrong with it and what is allowed.
    """

    def __init__(self, problems: dict[str, str]) -> None:
        self.problems = dict(problems)
        super().__init__("; ".join(f"{name}: {why}" for name, why in sorted(problems.items())))


class InvalidRequest(SchedulerError, ValueError):
    """A request description that contradicts itself."""


class AdmissionError(SchedulerError):
    """A well-formed request that cannot be admitted now."""


class SlotsFull(AdmissionError):
    """Every request slot is taken."""


class DuplicateRequest(AdmissionError):
    """The request id is already resident."""


class RequestTooLong(AdmissionError):
    """Prompt plus one output token exceed the request's context capacity."""


class Unservable(AdmissionError):
    """No prepared graph can ever serve the request."""


class SnapshotPending(AdmissionError):
    """The request that this one continues has not published its snapshot yet."""


class InvalidCheckpoint(SchedulerError, ValueError):
    """Bytes that restore() cannot read, or that belong to another catalog."""


class UnknownHandle(SchedulerError, LookupError):
    """A handle whose request has ended or never existed."""


class StalePlan(SchedulerError):
    """State moved on between plan() and commit(); plan again."""


class InvalidFence(SchedulerError, ValueError):
    """A fence that does not rise, or that is not in flight."""


class InvalidCompletion(SchedulerError, ValueError):
    """Completion records or timing that cannot belong to the committed plan."""


class InvalidObservation(SchedulerError, ValueError):
    """A duration, service amount or time outside its range."""


class ClockWentBack(SchedulerError, ValueError):
    """advance_to() was called with a time before the current one."""
