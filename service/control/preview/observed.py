"""What was seen of one policy on one piece of traffic, recorded or simulated, and the figures that this makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scheduler.simulation.metrics import jain
from service.control.preview.messages import QUANTILES, FigureError, Figures

NS_PER_MS = 1e6
EXPLORING = frozenset({"discovery", "timing_refresh", "acceptance_learning"})


@dataclasses.dataclass(slots=True)
class Seen:
    """One piece of traffic. Times in ns, counts in tokens.

    `ttft_ns`: of requests that came and had their first output in the piece. `time_per_token_ns`: of answers that began
    and ended in it. `gaps_ns`: between visible outputs in it. `rates`: (group, tokens per ns) of requests that came and
    ended in it.
    """

    length_ns: int
    ttft_ns: list[int] = dataclasses.field(default_factory=list)
    time_per_token_ns: list[float] = dataclasses.field(default_factory=list)
    gaps_ns: list[npt.NDArray[np.int64]] = dataclasses.field(default_factory=list)
    rates: list[tuple[str, float]] = dataclasses.field(default_factory=list)
    output_tokens: int = 0
    prompt_tokens: int = 0
    busy_ns: int = 0
    explored_ns: int = 0
    offered_tokens: int = 0
    accepted_tokens: int = 0
    completed: int = 0
    plans: int = 0

    def answered(
        self, group: str, arrived_ns: int, first_ns: int, finished_ns: int, computed: int, output: int
    ) -> None:
        """A request that came and ended in the piece. `computed`: prompt tokens that were not cached."""
        self.completed += 1
        self.rates.append((group, (computed + output) / max(1, finished_ns - arrived_ns)))
        if output > 1:
            self.time_per_token_ns.append((finished_ns - first_ns) / (output - 1))


def figures_of(pieces: Sequence[Seen]) -> Figures:
    """The figures over all pieces together."""
    seconds = sum(piece.length_ns for piece in pieces) / 1e9
    busy_ns = sum(piece.busy_ns for piece in pieces)
    offered = sum(piece.offered_tokens for piece in pieces)
    ttft = np.array([ns for piece in pieces for ns in piece.ttft_ns], dtype=np.float64)
    gaps = np.concatenate([np.empty(0, dtype=np.int64), *(gaps for piece in pieces for gaps in piece.gaps_ns)])
    rates = [rate for piece in pieces for rate in piece.rates]
    groups = sorted({group for group, _ in rates})
    means = [float(np.mean([rate for of, rate in rates if of == group])) for group in groups]
    return Figures(
        ttft_ms=_quantiles(ttft),
        time_per_token_ms=_quantiles(np.array([ns for piece in pieces for ns in piece.time_per_token_ns])),
        inter_token_ms=_quantiles(gaps.astype(np.float64)),
        largest_gap_ms=float(gaps.max()) / NS_PER_MS if len(gaps) else None,
        tokens_per_s=sum(piece.output_tokens for piece in pieces) / seconds,
        prompt_tokens_per_s=sum(piece.prompt_tokens for piece in pieces) / seconds,
        fairness_requests=jain([rate for _, rate in rates]),
        fairness_groups=jain(means) if len(groups) > 1 else None,
        groups=len(groups),
        exploration_share=sum(piece.explored_ns for piece in pieces) / busy_ns if busy_ns else None,
        busy_share=min(1.0, busy_ns / 1e9 / seconds),
        accepted_share=sum(piece.accepted_tokens for piece in pieces) / offered if offered else None,
        completed=sum(piece.completed for piece in pieces),
        samples=len(ttft),
        plans=sum(piece.plans for piece in pieces),
    )


def gaps_between(times_ns: Sequence[int]) -> npt.NDArray[np.int64]:
    """The differences of times that rise."""
    times = np.array(times_ns, dtype=np.int64)
    return times[1:] - times[:-1]


def _quantiles(values_ns: npt.NDArray[np.float64]) -> list[tuple[float, float]]:
    if not len(values_ns):
        return []
    found = np.quantile(values_ns, QUANTILES) / NS_PER_MS
    return [(share, round(float(value), 6)) for share, value in zip(QUANTILES, found, strict=True)]


def quantile(pairs: Sequence[tuple[float, float]], share: float) -> float | None:
    """The value of one quantile of a distribution in Figures."""
    return next((value for at, value in pairs if at == share), None)


def errors_between(recorded: Figures, simulated: Figures) -> list[FigureError]:
    """How far the simulated figures are from the recorded ones."""
    pairs = [
        (f"{name}_p{round(share * 100)}_ms", quantile(real, share), quantile(made, share))
        for name, real, made in (
            ("ttft", recorded.ttft_ms, simulated.ttft_ms),
            ("time_per_token", recorded.time_per_token_ms, simulated.time_per_token_ms),
            ("inter_token", recorded.inter_token_ms, simulated.inter_token_ms),
        )
        for share in (0.5, 0.99)
    ]
    pairs.append(("tokens_per_s", recorded.tokens_per_s, simulated.tokens_per_s))
    pairs.append(("busy_share", recorded.busy_share, simulated.busy_share))
    return [
        FigureError(name=name, recorded=real, simulated=made, ratio=made / real if real and made is not None else None)
        for name, real, made in pairs
    ]
