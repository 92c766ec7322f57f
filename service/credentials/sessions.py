"""Signed sessions of browsers: whoever signed in with a key holds a text that only this file's secret can have made.

Nothing is kept of them, so every service process agrees on them. The signature covers the credential's digest: a
credential that is revoked, or made anew under its name, ends its sessions with the next request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable

from service.credentials.files import Credential

SESSION_S = 12 * 3600
_SESSION = re.compile(r"([0-9a-f]{12})\.([1-9][0-9]{0,11})\.([0-9a-f]{64})", re.ASCII)


def session_for(credential: Credential, secret: str, now_s: int) -> str:
    """A session that starts now and lasts SESSION_S; `now_s` in seconds since 1970."""
    until = now_s + SESSION_S
    return f"{credential.id}.{until}.{_signature(credential, secret, until)}"


def credential_of(session: str, secret: str, now_s: int, find: Callable[[str], Credential | None]) -> Credential | None:
    """Whose session it is; None when it is over, forged or of a credential that `find` (by id) no longer knows."""
    match = _SESSION.fullmatch(session)
    if match is None or int(match[2]) <= now_s:
        return None
    credential = find(match[1])
    if credential is None or not hmac.compare_digest(_signature(credential, secret, int(match[2])), match[3]):
        return None
    return credential


def cookie_name(secret: str) -> str:
    """Servers that share a host name, on ports of their own, share its cookies: each file has a name of its own."""
    return f"helios_session_{hashlib.sha256(f'cookie name {secret}'.encode()).hexdigest()[:8]}"


def _signature(credential: Credential, secret: str, until: int) -> str:
    text = f"session {credential.id} {credential.digest} {until}"
    return hmac.new(bytes.fromhex(secret), text.encode(), hashlib.sha256).hexdigest()
