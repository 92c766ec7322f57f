"""POST /api/sql: one reading statement to the trace store, bounded in time, rows, bytes and calls a minute."""

from __future__ import annotations

import time
from typing import Any

from litestar import Request, Response, post

from service.api.access import ROLE_OPTION, Access
from service.api.context import ApiContext, context_of
from service.api.errors import BadRequest
from service.api.json_body import check_names, describe, integer, number, parse_object
from service.api.openapi_bodies import SqlOperation
from service.api.rate_limits import require_rate
from service.leaving import unless_left
from service.store.engines import database_url
from service.store.question import MOST_ROWS, MOST_SECONDS, MOST_STATEMENT, Form, Question

AnyRequest = Request[Any, Any, Any]
DEFAULT_ROWS = 1_000
DEFAULT_SECONDS = 10.0
MAX_BODY_BYTES = 1 << 20
FIELDS = ("statement", "rows", "timeout_s", "format")
_MEDIA = {"json": "application/json", "csv": "text/csv; charset=utf-8"}


@post(
    "/api/sql",
    tags=["trace"],
    status_code=200,
    request_max_body_size=MAX_BODY_BYTES,
    operation_class=SqlOperation,
    opt={ROLE_OPTION: Access.READ},
)
async def run_sql(request: AnyRequest) -> Response[bytes]:
    """One SELECT over the trace store, in a transaction that cannot write.

    Takes {"statement", "rows"?, "timeout_s"?, "format"?} and answers {"columns": [{"name", "type"}], "rows": [[...]],
    "truncated": null, "rows" or "bytes", "cut_values"}, or CSV, with the header Helios-Truncated. A caller that leaves
    ends its statement.
    """
    context = context_of(request)
    question = _question(parse_object(await request.body()), context)
    require_rate(request, context.sql_rate)
    began = time.perf_counter()
    body, told = await unless_left(request.receive, context.asking.ask(question))
    headers = {
        "Helios-Rows": str(told.rows),
        "Helios-Cut-Values": str(told.cut_values),
        "Helios-Truncated": told.truncated or "no",
        "Helios-Milliseconds": f"{(time.perf_counter() - began) * 1e3:.1f}",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    if question.form == "csv":
        part = "" if told.truncated is None else f"-first-{told.rows}-rows"
        headers["Content-Disposition"] = f'attachment; filename="helios{part}.csv"'
    return Response(body, headers=headers, media_type=_MEDIA[question.form])


def _question(body: dict[str, Any], context: ApiContext) -> Question:
    """Raises BadRequest."""
    check_names(body, FIELDS)
    statement = body.get("statement")
    if not isinstance(statement, str) or len(statement) > MOST_STATEMENT or "\0" in statement:
        raise BadRequest(
            f"statement must be one SELECT as a string of at most {MOST_STATEMENT:,} characters, "
            f"not {describe(statement)}.",
            "statement",
        )
    form = body.get("format", "json")
    if not isinstance(form, str) or form not in _MEDIA:
        raise BadRequest(f"format must be json or csv, not {describe(form)}.", "format")
    return Question(
        url=database_url(context.settings),
        statement=statement,
        rows=integer(body, "rows", 1, MOST_ROWS) or DEFAULT_ROWS,
        timeout_s=number(body, "timeout_s", 0, MOST_SECONDS, DEFAULT_SECONDS, above=True),
        form=_form(form),
    )


def _form(name: str) -> Form:
    return "csv" if name == "csv" else "json"
