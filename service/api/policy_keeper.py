"""Keeps the engine on the policy in force: on every connection, and after a withdrawal that it did not acknowledge."""

from __future__ import annotations

import asyncio
import logging

from scheduler.errors import InvalidPolicy
from service.api.engine_port import EnginePort
from service.control.errors import ControlError
from service.control.policy import PolicyControl
from service.ipc.errors import EngineError
from service.ipc.messages import EngineReady
from service.store.errors import StoreError

POLL_S = 1.0
_log = logging.getLogger(__name__)


async def keep_policy(engine: EnginePort, control: PolicyControl) -> None:
    """Runs until cancelled. Tries again each second while the store or the engine does not answer."""
    settled: EngineReady | None = None  # each connection has one of its own
    complaint = ""
    while True:
        ready = engine.ready
        if engine.state == "ready" and ready is not None and (ready is not settled or control.owes_engine):
            try:
                await control.reconcile(ready.policy_version)
                settled, complaint = ready, ""
            except (ControlError, EngineError, StoreError, InvalidPolicy) as error:
                if str(error) != complaint:
                    complaint = str(error)
                    _log.warning("the engine's policy could not be checked yet: %s", complaint)
        await asyncio.sleep(POLL_S)
