"""The control API of a running server, from a shell."""

from __future__ import annotations

import http
from typing import Any

import requests

from service.cli.output import fail
from service.settings import server_key

TIMEOUT_S = 15


def call(
    server: str, method: str, path: str, *, body: object = None, version: int | None = None, **query: str | int
) -> Any:
    """The JSON answer of one call; `version` goes into If-Match.

    Ends the command with the server's own words otherwise: exit 2 for a value that is not allowed, 1 for the rest.
    """
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    if key := server_key():
        headers["Authorization"] = f"Bearer {key}"
    try:
        with requests.Session() as session:
            session.trust_env = False  # a proxy for the outside world is not asked about this machine
            answer = session.request(
                method, f"{server}{path}", json=body, params=query or None, headers=headers, timeout=TIMEOUT_S
            )
    except requests.RequestException as error:
        fail(
            f"cannot reach {server} ({_reason(error)}); is helios serve running there? "
            "Name its address with --server or HELIOS_SERVER",
            1,
        )
    try:
        content = answer.json()
    except ValueError:
        content = None
    if not answer.ok or content is None:
        fail(_problem(server, answer.status_code, content, version), 2 if answer.status_code in (400, 422) else 1)
    return content


def _reason(error: requests.RequestException) -> str:
    return "no answer in time" if isinstance(error, requests.Timeout) else "no connection"


def _problem(server: str, status: int, content: object, version: int | None) -> str:
    """RFC 9457 problem details in one line; the detail names each field's problem. Advice is for this command line."""
    if not isinstance(content, dict):
        return f"{server} answered {status}, not as Helios does; name another address with --server"
    code = content.get("code")
    if code == "stale_policy":
        return _stale(content, version)
    if code == "guard_watches":
        return (
            f"a guard watches version {content.get('version')}; end it with helios policy guard end, go back with "
            "helios policy rollback, or repeat this with --end-guard"
        )
    if status == http.HTTPStatus.UNAUTHORIZED:
        return f"{server} asks for a key, and $HELIOS_KEY holds none that it takes (helios keys add makes one)"
    if code == "not_found":
        return f"{server} has no policy to control; is it a Helios of another version?"
    if code == "engine_did_not_answer":
        return "the engine did not take the change over in time and nothing changed; try again when the server is ready"
    return str(content.get("detail") or content.get("title") or f"the server answered {status}")


def _stale(content: dict[str, Any], version: int | None) -> str:
    current = content.get("current_version")
    sides = [f"{name}: yours {d.get('yours')}, theirs {d.get('theirs')}" for name, d in _difference(content)]
    return (
        f"version {current} is in force, not {version} ({'; '.join(sides) or 'no coefficient differs'}); "
        f"look at it with helios policy show, then repeat this with --if-version {current}"
    )


def _difference(content: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    found = content.get("difference")
    return [(n, d) for n, d in found.items() if isinstance(d, dict)] if isinstance(found, dict) else []
