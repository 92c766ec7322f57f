"""Typed errors of the HTTP border.

ApiError
├── BadRequest           400  the body or a parameter cannot be used; `param` says which
├── ContextExceeded      400  prompt, or prompt plus max_tokens, are longer than the model's context
├── Unauthenticated      401  no credential, or one that is not valid
├── CrossOrigin          403  a browser page of another origin, or under another name
├── Forbidden            403  the credential's role does not allow it
├── NotFound             404  no such plan, request, run or model
├── ModelNotFound        404  a model that is not served here
├── Unprocessable        422  well-formed, but a value is not allowed
├── PreconditionRequired 428  a change without If-Match
├── TooManyFailures      429  wrong keys again and again
├── TooOften             429  an expensive route, asked for again and again
├── QueueFull            429  as many requests as the server takes are open
├── GenerationFailed     500  the engine could not go on with a request
├── EngineNotReady       503  the engine starts, stops or is down
└── ShuttingDown         503  the server ends
"""

from __future__ import annotations

from collections.abc import Mapping


class ApiError(Exception):
    """Base of the errors that the HTTP border itself raises."""


class BadRequest(ApiError):
    """A body or parameter that cannot be used. The message says what is allowed."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        self.param = param
        self.code = code
        super().__init__(message)


class ContextExceeded(ApiError):
    """The request does not fit the model's context."""

    def __init__(self, message: str, param: str) -> None:
        self.param = param
        super().__init__(message)


class CrossOrigin(ApiError):
    """A change that a page of another origin asks for, or anything under a name that is not this machine's."""


class Unauthenticated(ApiError):
    """No credential, or one that is not valid."""


class Forbidden(ApiError):
    """The credential's role does not allow it."""


class TooManyFailures(ApiError):
    """Wrong keys again and again from one address; `wait_s`: seconds until it is worth trying again."""

    def __init__(self, message: str, wait_s: int) -> None:
        self.wait_s = wait_s
        super().__init__(message)


class NotFound(ApiError):
    """No such thing."""


class ModelNotFound(ApiError):
    """A model that is not served here."""


class Unprocessable(ApiError):
    """Well-formed values that are not allowed; `problems` maps each name to what is."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        super().__init__("; ".join(f"{name}: {why}" for name, why in sorted(problems.items())))


class PreconditionRequired(ApiError):
    """A change without If-Match."""


class TooOften(ApiError):
    """An expensive route that one caller asks for again and again; `retry_after_s` says when it may."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class QueueFull(ApiError):
    """As many requests as the server takes are open."""


class GenerationFailed(ApiError):
    """The engine could not go on with a request."""


class EngineNotReady(ApiError):
    """The engine starts, stops or is down."""


class ShuttingDown(ApiError):
    """The server ends."""
