"""The control API of a running server, from a shell."""

from __future__ import annotations

from typing import Any

import requests

from service.cli.output import fail

TIMEOUT_S = 15


def call(
    server: str, method: str, path: str, *, body: object = None, version: int | None = None, **query: str | int
) -> Any:
    """The JSON answer of one call; `version` goes into If-Match.

    Ends the command with the server's own words otherwise: exit 2 for a value that is not allowed, 1 for the rest.
    """
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    try:
        with requests.Session() as session:
            session.trust_env = False  # a proxy for the outside world is not asked about this machine
            answer = session.request(
                method, f"{server}{path}", json=body, params=query or None, headers=headers, timeout=TIMEOUT_S
            )
    except requests.RequestException as error:
        fail(f"cannot reach {server} ({_reason(error)}); is helios serve running there? Name it with --server", 1)
    try:
        content = answer.json()
    except ValueError:
        content = None
    if not answer.ok or content is None:
        fail(_problem(answer.status_code, content), 2 if answer.status_code in (400, 422) else 1)
    return content


def _reason(error: requests.RequestException) -> str:
    return "no answer in time" if isinstance(error, requests.Timeout) else "no connection"


def _problem(status: int, content: object) -> str:
    """RFC 9457 problem details in one line; the detail names each field's problem."""
    if not isinstance(content, dict):
        return f"the server answered {status}"
    return str(content.get("detail") or content.get("title") or f"the server answered {status}")
