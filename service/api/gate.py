"""Says who a request comes from: a key in its Authorization header, or the session of a browser's cookie."""

from __future__ import annotations

import base64
import binascii
import logging
import time
from typing import NoReturn

from litestar.datastructures import Headers

from service.api.errors import TooManyFailures, Unauthenticated
from service.credentials.attempts import FailedAttempts
from service.credentials.caller import Caller
from service.credentials.files import Credential
from service.credentials.key_ring import KeyRing

LONGEST_HEADER = 1024
WRONG = "This key is not, or no longer, valid. Ask whoever runs the server for one (helios keys add)."
MISSING = "This server asks for a key: send Authorization: Bearer KEY, or sign in at /login."
TOO_MANY = "Too many attempts with a wrong key came from your address; try again in {wait_s} s."
_log = logging.getLogger(__name__)


class Gate:
    """The keys of one file, and the failures of each address. One for each service process."""

    def __init__(self, keys: KeyRing, *, protect_metrics: bool = False) -> None:
        self.keys = keys
        self.protect_metrics = protect_metrics
        self.failed = FailedAttempts()

    def caller(self, headers: Headers, address: str) -> tuple[Caller, bool]:
        """Who calls, and whether a browser's session says so, which another site's page may have set in motion.

        Raises Unauthenticated and TooManyFailures.
        """
        given = headers.get("authorization")
        if given is not None:
            found = self._by_header(given)
            if found is None:
                self.refuse(address)
            return found.caller, False
        session = _cookie(headers, self.keys.cookie)
        found = self.keys.session(session) if session else None
        if found is None:
            raise Unauthenticated(MISSING)
        return found.caller, True

    def sign_in(self, key: str, address: str) -> Credential:
        """Whose key this is. Raises Unauthenticated and TooManyFailures."""
        found = self.keys.holder(key) if len(key) <= LONGEST_HEADER else None
        if found is None:
            self.refuse(address)
        return found

    def refuse(self, address: str) -> NoReturn:
        """Counts a wrong key of this address. Raises Unauthenticated or TooManyFailures, and never logs the key."""
        failure = self.failed.failed(address, time.monotonic())
        if failure.to_log:
            _log.warning("%d attempts with a wrong key from %s", failure.to_log, address)
        if failure.wait_s:
            raise TooManyFailures(TOO_MANY.format(wait_s=failure.wait_s), failure.wait_s)
        raise Unauthenticated(WRONG)

    def _by_header(self, given: str) -> Credential | None:
        scheme, _, value = given.strip().partition(" ")
        if len(given) > LONGEST_HEADER:
            return None
        if scheme.lower() == "bearer":
            return self.keys.holder(value.strip())
        if scheme.lower() != "basic":
            return None
        try:
            name, _, key = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return self.keys.holder(key, name)


def _cookie(headers: Headers, name: str) -> str:
    """The value of this cookie; empty when there is none, or when several say different things."""
    found = set()
    for header in headers.getall("cookie", []):
        for part in header[: 4 * LONGEST_HEADER].split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                found.add(value)
    return found.pop() if len(found) == 1 else ""
