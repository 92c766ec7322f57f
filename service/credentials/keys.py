"""What a key looks like, and what is kept of it.

A key is `helios_<id>_<secret>`: the id says which credential it is (12 hexadecimal digits, no secret), the secret is
256 random bits. Kept is SHA-256 over a salt and the key. A slow hash such as scrypt protects what people choose, which
can be guessed from a list; nobody guesses 256 random bits, and a fast hash costs each request a microsecond.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

ID_BYTES = 6
SALT_BYTES = 16
_KEY = re.compile(r"helios_([0-9a-f]{12})_[A-Za-z0-9_-]{43,86}", re.ASCII)
KEY_IN_TEXT = re.compile(rb"helios_[0-9a-f]{12}_[A-Za-z0-9_-]{16}")
"""What betrays a key, or most of one, within other text."""


class NewKey(NamedTuple):
    """A key that was just made, and what is kept of it. `key` is shown once and stored nowhere."""

    id: str
    key: str
    salt: str
    digest: str


def new_key() -> NewKey:
    """A random key."""
    made, salt = secrets.token_hex(ID_BYTES), secrets.token_hex(SALT_BYTES)
    key = f"helios_{made}_{secrets.token_urlsafe(32)}"
    return NewKey(made, key, salt, digest_of(key, salt))


def id_in(key: str) -> str | None:
    """The id of the credential that `key` claims to be; None when it is no key."""
    match = _KEY.fullmatch(key)
    return match[1] if match else None


def digest_of(key: str, salt: str) -> str:
    """SHA-256 over salt and key, in hexadecimal."""
    return hashlib.sha256(f"{salt}{key}".encode()).hexdigest()


def is_key(key: str, salt: str, digest: str) -> bool:
    """Whether `digest` was made of this key, in a time that does not depend on how much of it is right."""
    return hmac.compare_digest(digest_of(key, salt), digest)
