"""What axes of several figures share."""

from __future__ import annotations

from typing import Any

UNMEASURED: dict[str, Any] = {"ticklabeloverflow": "allow"}
"""For upright axes, whose labels stay inside the figure.

Else Plotly asks the browser where each label is, and the page is laid out for every one of them: a quarter of its work
on a timeline.
"""
