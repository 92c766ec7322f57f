"""Lanes for programs that run without a device around them."""

from __future__ import annotations

import numpy as np

from gpu.device import SamplingParameters
from gpu.pages import pages_for
from gpu.requests import LaneWork, ResidentRequest


def resident(prompt: list[int], outputs: int = 16, first_page: int = 1) -> ResidentRequest:
    """A request on consecutive pages."""
    capacity = len(prompt) + outputs
    pages = tuple(range(first_page, first_page + pages_for(capacity)))
    return ResidentRequest(
        slot=0,
        prompt=np.array(prompt, dtype=np.int64),
        sampling=SamplingParameters(temperature=0.0),
        pages=pages,
        page_row=np.array(pages, dtype=np.int64),
        capacity=capacity,
    )


def tokens_at(request: ResidentRequest, token_ids: list[int], start: int) -> LaneWork:
    """A lane that runs `token_ids` from position `start` on."""
    return LaneWork(request, np.array(token_ids, dtype=np.int64), start, draws=True, draw_index=0)


def whole_prompt(prompt: list[int]) -> LaneWork:
    """A lane that runs a prompt at once."""
    return tokens_at(resident(prompt), prompt, 0)
