"""Ids of spans, which follow from run, fence and request id alone: whoever knows these names the same span.

No protobuf and no SDK here: the engine names the traces of its histograms' exemplars with it.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class SpanIds(NamedTuple):
    """16 and 8 bytes."""

    trace_id: bytes
    span_id: bytes


def plan_ids(run_id: str, fence: int) -> SpanIds:
    """The ids of a plan's span; each plan is a trace of its own, linked to its requests."""
    return _derived(f"plan/{run_id}/{fence}")


def policy_ids(run_id: str, version: int, fence: int) -> SpanIds:
    """The ids of a policy change's span."""
    return _derived(f"policy/{run_id}/{version}/{fence}")


def request_ids(run_id: str, request_id: str, trace_id: str | None) -> SpanIds:
    """The ids of a request's span, in the caller's trace where it sent a valid traceparent."""
    own = _derived(f"request/{run_id}/{request_id}")
    caller = id_bytes(trace_id, 16)
    return own if caller is None else SpanIds(caller, own.span_id)


def id_bytes(text: str | None, size: int) -> bytes | None:
    """The bytes of a W3C id in hexadecimal, or None when it is not `size` bytes or all zero."""
    try:
        raw = bytes.fromhex(text or "")
    except ValueError:
        return None
    return raw if len(raw) == size and any(raw) else None


def _derived(key: str) -> SpanIds:
    digest = hashlib.blake2b(key.encode(), digest_size=24).digest()
    return SpanIds(digest[:16], digest[16:])
