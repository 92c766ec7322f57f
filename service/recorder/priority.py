"""When the recorder gives way to the processes that serve (service.priority)."""

from __future__ import annotations

AGAIN = "--again"
"""Tells a recorder that it replaces another one, beside a server that serves."""
