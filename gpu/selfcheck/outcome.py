"""How a check ends."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable

Check = Callable[[], str]
"""Returns one line about what was found. Raises CheckFailed or CheckSkipped, or whatever the checked code raises."""


class Status(enum.Enum):
    """Values are the words that are printed."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class CheckFailed(Exception):
    """Something was computed, and it is wrong."""


class CheckSkipped(Exception):
    """There is nothing to check here; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class NamedCheck:
    """A check and the name that it is listed under."""

    name: str
    run: Check


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One line of the table. `seconds`: how long the check took."""

    name: str
    status: Status
    detail: str
    seconds: float


def carry_out(check: NamedCheck) -> Outcome:
    """Run a check. No error leaves it: one that nobody expected is a failure too."""
    began = time.monotonic()
    try:
        status, detail = Status.PASSED, check.run()
    except CheckSkipped as reason:
        status, detail = Status.SKIPPED, str(reason)
    except CheckFailed as failure:
        status, detail = Status.FAILED, str(failure)
    except Exception as error:  # a driver's error tells as much as a wrong number
        status, detail = Status.FAILED, f"{type(error).__name__}: {error}"
    return Outcome(check.name, status, " ".join(detail.split()), time.monotonic() - began)
