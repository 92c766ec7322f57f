"""The W3C `traceparent` header."""

from __future__ import annotations

import re

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", flags=re.ASCII)


def checked_traceparent(header: str | None) -> str | None:
    """The header's first four fields if it is valid, else None: a broken header starts a new trace, as the W3C asks.

    Refused are version ff, an all-zero trace or parent id, upper case, and extra fields in version 00.
    """
    if header is None or (match := _FORM.fullmatch(header.strip())) is None:
        return None
    version, trace_id, parent_id, rest = match.groups()
    if version == "ff" or not trace_id.strip("0") or not parent_id.strip("0") or (version == "00" and rest):
        return None
    return header.strip()[:55]
