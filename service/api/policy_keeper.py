"""Keeps the engine on the policy in force: on every connection, after a withdrawal that it did not acknowledge, and
when another process on the database applied a newer one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from scheduler.errors import InvalidPolicy
from service.api.engine_port import EnginePort
from service.control.errors import ControlError
from service.control.policy import PolicyControl
from service.ipc.errors import EngineError, PolicyRejected
from service.ipc.messages import EngineReady
from service.store.errors import StoreError

POLL_S = 0.5
UNCHECKED = (
    "the policy in force cannot be read from the store: the engine goes on with version {}, and a newer one is applied "
    "when the store answers"
)
_log = logging.getLogger(__name__)


def _nobody(_what: str) -> None:
    pass


async def keep_policy(engine: EnginePort, control: PolicyControl, tell: Callable[[str], None] = _nobody) -> None:
    """Runs until cancelled. Tries again while the store or the engine does not answer.

    Each connection is checked once; from then on the engine gets what other processes on the database apply, within
    about POLL_S. `tell` gets what people should know: that the store cannot say which policy is the newest, or nothing.
    """
    settled: EngineReady | None = None  # each connection has one of its own
    complaint = ""
    while True:
        ready = engine.ready
        if engine.state == "ready" and ready is not None:
            unchecked = ready is not settled or control.owes_engine
            try:
                if unchecked:
                    await control.reconcile(ready.policy_version)
                    settled = ready
                    tell("")
                else:
                    await control.follow()
                complaint = ""
            except (ControlError, EngineError, StoreError, InvalidPolicy) as error:
                if unchecked and isinstance(error, StoreError):
                    tell(UNCHECKED.format(ready.policy_version))
                # Another service of the same engine was faster: the next look knows what it applied.
                if str(error) != complaint and not isinstance(error, PolicyRejected):
                    complaint = str(error)
                    _log.warning("the engine's policy could not be checked yet: %s", complaint)
        await asyncio.sleep(POLL_S)
