"""Refuses calls of expensive routes that come too often from one caller: 429 with Retry-After."""

from __future__ import annotations

import math
import time
from typing import Any

from litestar import Request

from service.api.errors import TooOften
from service.control.rate_limit import RateLimit
from service.credentials.caller import SCOPE_KEY, Caller

LOCAL = "this machine"


def caller_key(request: Request[Any, Any, Any]) -> str:
    """Whose bucket a call takes from: the credential's, or the address's where there are none."""
    caller = request.scope.get(SCOPE_KEY)
    if isinstance(caller, Caller):
        return f"name {caller.name}"
    client = request.scope["client"]
    return f"address {client[0]}" if client else LOCAL


def require_rate(request: Request[Any, Any, Any], limit: RateLimit) -> None:
    """Takes one call from the caller's bucket; raises TooOften when it is empty."""
    wait_s = limit.take(caller_key(request), time.monotonic())
    if wait_s > 0:
        raise TooOften(
            f"This is asked for too often: {limit.burst} times at once and {limit.per_minute:g} times a minute are "
            f"allowed. Try again in {math.ceil(wait_s)} s.",
            math.ceil(wait_s),
        )
