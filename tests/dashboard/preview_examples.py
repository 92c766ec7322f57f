"""Results of previews, small and made by hand."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

from service.control.preview.messages import QUANTILES, FigureError, Figures, PreviewResult, Window

AT = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)


def figures(first_token_ms: float = 100.0, tokens_per_s: float = 50.0) -> Figures:
    """Distributions that grow with `first_token_ms`."""
    return Figures(
        ttft_ms=[(share, first_token_ms * (1 + share)) for share in QUANTILES],
        time_per_token_ms=[(share, 10 * (1 + share)) for share in QUANTILES],
        inter_token_ms=[(share, 12 * (1 + share)) for share in QUANTILES],
        largest_gap_ms=500.0,
        tokens_per_s=tokens_per_s,
        prompt_tokens_per_s=200.0,
        fairness_requests=0.9,
        exploration_share=0.02,
        busy_share=0.8,
        completed=30,
        samples=31,
        plans=900,
    )


def result_with(**changes: Any) -> PreviewResult:
    """A preview of ten minutes under which the draft's first tokens come sooner."""
    base = PreviewResult(
        window=Window(
            run_id="run-1",
            model="model-1",
            device="cpu",
            since=AT,
            until=AT + dt.timedelta(minutes=10),
            policy_versions=(2,),
        ),
        sampled=None,
        requests=31,
        open_at_start=1,
        recorded=figures(105.0),
        running=figures(100.0),
        draft=figures(80.0, 48.0),
        simulator_error=[FigureError(name="ttft_p50_ms", recorded=150.0, simulated=156.0, ratio=1.04)],
        recorded_under_running=True,
        seconds=3.0,
        plans=1800,
    )
    return msgspec.structs.replace(base, **changes)
