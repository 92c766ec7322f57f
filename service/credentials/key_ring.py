"""Checks keys and sessions against the file as it is now.

Each use looks whether the file is still the same (one stat, about two microseconds), so that a key that was added or
revoked counts from the next request on, in every process. A new file that cannot be used changes nothing: the last
good one stays in force, and `problem` says so.
"""

from __future__ import annotations

import datetime as dt
import logging
import pathlib
import time

from service.credentials.errors import CredentialsUnusable
from service.credentials.files import Credential, CredentialsFile, Stamp, read_credentials, stamp_of
from service.credentials.keys import id_in, is_key
from service.credentials.sessions import cookie_name, credential_of, session_for

NOT_IN_FORCE = "the credentials file cannot be used: the credentials of before its last change are in force"
"""Names no path: /health/ready is open to everybody. The log says more."""
_log = logging.getLogger(__name__)


class KeyRing:
    """The credentials of one file. For one event loop; a check takes a few microseconds and never waits."""

    def __init__(self, path: pathlib.Path) -> None:
        """Raises CredentialsUnusable."""
        self._path = path
        self._stamp: Stamp | None = self._stamp_now()
        self._content = read_credentials(path)
        self._by_id = _index(self._content)
        self._problem = ""

    def holder(self, key: str, name: str | None = None) -> Credential | None:
        """The credential that this key belongs to, and if given this name; None when none does, now."""
        self._look()
        found = self._by_id.get(id_in(key) or "")
        if found is None or not is_key(key, found.salt, found.digest) or name not in (None, "", found.name):
            return None
        return found if found.is_valid(_now()) else None

    def session(self, text: str) -> Credential | None:
        """Whose session this is; None when it is over or nobody's."""
        self._look()
        found = credential_of(text, self._content.secret, int(time.time()), self._by_id.get)
        return found if found is not None and found.is_valid(_now()) else None

    def new_session(self, credential: Credential) -> str:
        """A session for a browser whose user has just shown the key of `credential`."""
        return session_for(credential, self._content.secret, int(time.time()))

    @property
    def cookie(self) -> str:
        """The name of the cookie that holds a session."""
        return cookie_name(self._content.secret)

    @property
    def problem(self) -> str:
        """What people should know: that the file on disk is not the one in force. Empty when all is well."""
        self._look()
        return self._problem

    def _look(self) -> None:
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._content = read_credentials(self._path)
        except CredentialsUnusable as error:
            self._problem = NOT_IN_FORCE
            _log.warning("%s: %s", NOT_IN_FORCE, error)
            return
        self._by_id = _index(self._content)
        self._problem = ""
        _log.warning("the credentials were read again: %d in force", len(self._by_id))

    def _stamp_now(self) -> Stamp | None:
        try:
            return stamp_of(self._path)
        except OSError:
            return None


def _index(content: CredentialsFile) -> dict[str, Credential]:
    return {one.id: one for one in content.credentials}


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
