"""The one table from typed errors to HTTP answers, in OpenAI's form under /v1 and as RFC 9457 problems elsewhere."""

from __future__ import annotations

import dataclasses
import http
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from litestar import Request, Response
from litestar.exceptions import HTTPException
from sqlalchemy import exc as sqlalchemy_errors

from scheduler.errors import InvalidPolicy
from service.api import errors
from service.api.responses import json_response
from service.control.errors import (
    ChangeInProgress,
    ChangeRefused,
    EngineDidNotAnswer,
    GuardWatches,
    InvalidChange,
    NoGuard,
    NoPolicy,
    StalePolicy,
    UnknownVersion,
    UnreadablePolicy,
)
from service.control.preview.errors import (
    InvalidPreview,
    NothingRecorded,
    PreviewsFull,
    PreviewsUnusable,
    UnknownPreview,
)
from service.ipc.errors import EngineLost, EngineRefused, EngineUnavailable, PolicyRejected
from service.leaving import ClientLeft
from service.store.errors import (
    InvalidFilter,
    ReadTooLong,
    StatementError,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TooManyReads,
)
from service.text import TemplateError, UnencodableText

_log = logging.getLogger(__name__)
E_ = TypeVar("E_", bound=Exception)
PROBLEM_JSON = "application/problem+json"
CHALLENGE = 'Bearer realm="helios"'
"""Not Basic, which is taken too: browsers would ask for it, keep it, and send it along with other sites' requests."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An error as HTTP sees it. `extra` holds members of the problem details only."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        """Retry-After where it helps, and how to authenticate where that is missing."""
        retry = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return retry | ({"WWW-Authenticate": CHALLENGE} if self.status == http.HTTPStatus.UNAUTHORIZED else {})

    def openai(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = {429: "rate_limit_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def problem(self) -> dict[str, Any]:
        """RFC 9457 problem details."""
        title = http.HTTPStatus(self.status).phrase
        body = {"type": "about:blank", "title": title, "status": self.status, "detail": self.message, "code": self.code}
        if self.param is not None:
            body["param"] = self.param
        return {**body, **self.extra}


def _plain(status: int, code: str, retry_after_s: int | None = None) -> Callable[[Exception], Answer]:
    return lambda error: Answer(status, code, str(error), retry_after_s=retry_after_s)


_REFUSALS: Mapping[str, tuple[int, str, int | None]] = {
    "too_long": (400, "context_length_exceeded", None),
    "invalid": (400, "invalid_request", None),
    "queue_full": (429, "queue_full", 1),
    "stopping": (503, "shutting_down", 5),
    "duplicate": (503, "duplicate_request", 1),
}


def _refused(error: EngineRefused) -> Answer:
    status, code, retry = _REFUSALS.get(error.code, (503, error.code, 1))
    return Answer(status, code, error.message, retry_after_s=retry)


def _http(error: HTTPException) -> Answer:
    """Litestar's own refusals: unknown paths, wrong methods, large bodies."""
    messages = {
        404: ("not_found", "There is nothing at this address. GET /schema lists what there is."),
        405: ("method_not_allowed", "This address does not take this method. GET /schema lists what it takes."),
        413: ("body_too_large", "The body is larger than 4 MiB, or 64 KiB under /api/policy. Send less."),
    }
    code, message = messages.get(error.status_code, ("bad_request", str(error.detail)))
    if error.status_code >= 500:
        return INTERNAL if error.status_code == 500 else Answer(error.status_code, "unavailable", str(error.detail))
    return Answer(error.status_code, code, message)


def _invalid_policy(error: InvalidPolicy) -> Answer:
    return Answer(422, "invalid_policy", str(error), extra={"problems": error.problems})


def _stale(error: StalePolicy) -> Answer:
    version = error.current.version
    extra = {"current_version": version, "difference": error.difference}
    message = f'{error}. Read GET /api/policy and send If-Match: "{version}"'
    return Answer(409, "stale_policy", message, extra=extra)


def _statement(error: StatementError) -> Answer:
    """`offset`: the character of the statement that the message is about, from 0, or null."""
    return Answer(422, "statement_error", str(error), "statement", extra={"offset": error.offset})


def _rule(kind: type[E_], answer: Callable[[E_], Answer]) -> tuple[type[Exception], Callable[[Any], Answer]]:
    return kind, answer


INTERNAL = Answer(500, "internal_error", "The server failed on this request. Its log has the details.")
RULES = (
    _rule(errors.BadRequest, lambda e: Answer(400, e.code or "invalid_request", str(e), e.param)),
    _rule(errors.ContextExceeded, lambda e: Answer(400, "context_length_exceeded", str(e), e.param)),
    _rule(errors.Unauthenticated, _plain(401, "invalid_api_key")),
    _rule(errors.CrossOrigin, _plain(403, "cross_origin")),
    _rule(errors.Forbidden, _plain(403, "forbidden")),
    _rule(errors.ModelNotFound, lambda e: Answer(404, "model_not_found", str(e), "model")),
    _rule(errors.NotFound, _plain(404, "not_found")),
    _rule(errors.Unprocessable, lambda e: Answer(422, "invalid_value", str(e), extra={"problems": e.problems})),
    _rule(errors.PreconditionRequired, _plain(428, "if_match_required")),
    _rule(errors.TooManyFailures, lambda e: Answer(429, "too_many_failures", str(e), retry_after_s=e.wait_s)),
    _rule(errors.QueueFull, _plain(429, "queue_full", 1)),
    _rule(errors.TooOften, lambda e: Answer(429, "too_often", str(e), retry_after_s=e.retry_after_s)),
    _rule(ClientLeft, _plain(400, "client_left")),
    _rule(errors.GenerationFailed, _plain(500, "generation_failed")),
    _rule(errors.EngineNotReady, _plain(503, "engine_not_ready", 2)),
    _rule(errors.ShuttingDown, _plain(503, "shutting_down", 5)),
    _rule(TemplateError, lambda e: Answer(400, "invalid_messages", str(e), "messages")),
    _rule(UnencodableText, lambda e: Answer(400, "invalid_unicode", str(e))),
    _rule(EngineRefused, _refused),
    _rule(EngineLost, _plain(503, "engine_lost", 2)),
    _rule(EngineUnavailable, _plain(503, "engine_unavailable", 2)),
    _rule(PolicyRejected, _plain(422, "policy_rejected")),
    _rule(InvalidPolicy, _invalid_policy),
    _rule(StalePolicy, _stale),
    _rule(InvalidChange, lambda e: Answer(422, "invalid_value", str(e), extra={"problems": {e.name: e.problem}})),
    _rule(UnknownVersion, _plain(422, "unknown_version")),
    _rule(InvalidPreview, lambda e: Answer(422, "invalid_value", str(e), extra={"problems": e.problems})),
    _rule(NothingRecorded, _plain(409, "nothing_recorded")),
    _rule(PreviewsFull, _plain(429, "previews_full", 5)),
    _rule(UnknownPreview, _plain(404, "not_found")),
    _rule(PreviewsUnusable, _plain(503, "previews_unusable", 30)),
    _rule(GuardWatches, lambda e: Answer(409, "guard_watches", str(e), extra={"version": e.version})),
    _rule(NoGuard, _plain(404, "no_guard")),
    _rule(ChangeInProgress, _plain(409, "change_in_progress", 1)),
    _rule(EngineDidNotAnswer, _plain(503, "engine_did_not_answer", 2)),
    _rule(ChangeRefused, _plain(503, "change_withdrawn", 2)),
    _rule(NoPolicy, _plain(503, "no_policy", 2)),
    _rule(UnreadablePolicy, _plain(500, "unreadable_policy")),
    _rule(InvalidFilter, lambda e: Answer(400, "invalid_filter", str(e), e.name)),
    _rule(StatementError, _statement),
    _rule(TooManyReads, lambda e: Answer(429, "too_many_reads", str(e), retry_after_s=e.retry_after_s)),
    _rule(ReadTooLong, _plain(503, "read_too_long", 5)),
    _rule(StoreBusy, _plain(503, "store_busy", 1)),
    _rule(StoreUnavailable, _plain(503, "store_unavailable", 5)),
    _rule(StoreError, _plain(503, "store_unusable", 30)),
    _rule(sqlalchemy_errors.OperationalError, lambda _: Answer(503, "store_unavailable", STORE_DOWN, retry_after_s=5)),
    _rule(sqlalchemy_errors.TimeoutError, lambda _: Answer(503, "store_busy", STORE_DOWN, retry_after_s=1)),
    _rule(HTTPException, _http),
)
"""The first rule whose type fits answers."""
STORE_DOWN = "The trace store cannot be reached now; nothing was changed. Check the database and try again."


def answer_for(error: Exception) -> Answer:
    """What HTTP says of `error`; for an error that nobody foresaw 500, and its traceback goes to the log."""
    for kind, answer in RULES:
        if isinstance(error, kind):
            return answer(error)
    _log.error("unexpected error", exc_info=error)
    return INTERNAL


def handle_exception(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's handler for every exception."""
    answer = answer_for(error)
    path = request.scope["path"]  # request.url fails on a Host header that is no host
    if path == "/v1" or path.startswith("/v1/"):
        return json_response(answer.openai(), status=answer.status, headers=answer.headers)
    return json_response(answer.problem(), status=answer.status, headers=answer.headers, media_type=PROBLEM_JSON)
