"""Keeps the engine on the policy in force: on every connection, and after a withdrawal that it did not acknowledge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from scheduler.errors import InvalidPolicy
from service.api.engine_port import EnginePort
from service.control.errors import ControlError
from service.control.policy import PolicyControl
from service.ipc.errors import EngineError
from service.ipc.messages import EngineReady
from service.store.errors import StoreError

POLL_S = 1.0
UNCHECKED = (
    "the policy in force cannot be read from the store: the engine goes on with version {}, and a newer one is applied "
    "when the store answers"
)
_log = logging.getLogger(__name__)


def _nobody(_what: str) -> None:
    pass


async def keep_policy(engine: EnginePort, control: PolicyControl, tell: Callable[[str], None] = _nobody) -> None:
    """Runs until cancelled. Tries again each second while the store or the engine does not answer.

    `tell` gets what people should know: that the store cannot say which policy is the newest, or nothing.
    """
    settled: EngineReady | None = None  # each connection has one of its own
    complaint = ""
    while True:
        ready = engine.ready
        if engine.state == "ready" and ready is not None and (ready is not settled or control.owes_engine):
            try:
                await control.reconcile(ready.policy_version)
                settled, complaint = ready, ""
                tell("")
            except (ControlError, EngineError, StoreError, InvalidPolicy) as error:
                if isinstance(error, StoreError):
                    tell(UNCHECKED.format(ready.policy_version))
                if str(error) != complaint:
                    complaint = str(error)
                    _log.warning("the engine's policy could not be checked yet: %s", complaint)
        await asyncio.sleep(POLL_S)
