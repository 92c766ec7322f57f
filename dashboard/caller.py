"""Who a callback or page works for, and which callbacks change something.

Without credentials (a server on loopback) there is no caller, and everybody who reaches the server may do everything.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from service.credentials.caller import Caller

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
OPERATORS_ONLY = "helios_operators_only"
NOT_ALLOWED = "Only an operator may do this; you are signed in as a viewer."

# Belongs to one request: each has a context of its own, which the threads it starts take over.
_caller: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("helios_caller", default=None)


def caller() -> Caller | None:
    """Whose request is being answered, in callbacks and page functions; None where no credentials are asked for."""
    return _caller.get()


def may_change() -> bool:
    """Whether the present caller may change things: an operator, or anybody where no credentials are asked for."""
    found = caller()
    return found is None or found.may_change


@contextlib.contextmanager
def acting_for(who: Caller | None) -> Iterator[None]:
    """Answers one request for `who`; used by the adapter (dashboard.asgi) and by tests."""
    token = _caller.set(who)
    try:
        yield
    finally:
        _caller.reset(token)


def operators_only(function: Callable[Given, Awaitable[Answer]]) -> Callable[Given, Awaitable[Answer]]:
    """Marks a callback that changes something, or costs much: others get 403 before it runs.

    Goes below the registration: `@app.callback(…)`, then `@operators_only`, then `async def apply(…)`.
    """

    @functools.wraps(function)
    async def marked(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        return await function(*args, **kwargs)

    setattr(marked, OPERATORS_ONLY, True)
    return marked


def is_for_operators(callback: Mapping[str, Any]) -> bool:
    """Whether an entry of Dash's callback map is marked with `operators_only`."""
    return bool(getattr(callback.get("callback"), OPERATORS_ONLY, False))
