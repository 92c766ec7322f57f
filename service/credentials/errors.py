"""Typed errors of the credentials.

CredentialsError
├── CredentialsUnusable   the file is missing, open to others, too large or not what `helios keys` writes
├── NameTaken             a credential of this name is there already
└── NoSuchName            no credential has this name
"""

from __future__ import annotations


class CredentialsError(Exception):
    """Base of what goes wrong with credentials. Messages hold names and paths, never a key."""


class CredentialsUnusable(CredentialsError):
    """The file cannot be used; the message says why and what to do."""


class NameTaken(CredentialsError):
    """Names are unique."""


class NoSuchName(CredentialsError):
    """Nothing to revoke."""
