"""Reference rates from measured graphs: normalizers and the reference interval sigma (S4, S9)."""

from __future__ import annotations

import dataclasses

from scheduler.reference.catalog import Catalog
from scheduler.reference.residents import Resident
from scheduler.shapes import GraphKind, GraphShape


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredGraph:
    """A shape with a known duration in ms."""

    shape: GraphShape
    duration_ms: float


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredGraphs:
    """The measured part of the catalog at one instant, by what the graphs do."""

    prefill: tuple[MeasuredGraph, ...]
    decode: tuple[MeasuredGraph, ...]

    @classmethod
    def of(cls, catalog: Catalog, now_ns: int) -> MeasuredGraphs:
        """Fresh and stale estimates alike: a stale cost stays available for normalization (S6)."""

        def known(kind: GraphKind) -> tuple[MeasuredGraph, ...]:
            estimates = ((shape, catalog.estimate(shape, now_ns)) for shape in catalog.of_kind(kind))
            return tuple(MeasuredGraph(s, e.duration_ns / 1e6) for s, e in estimates if e.known)

        return cls(prefill=known(GraphKind.PREFILL), decode=known(GraphKind.DECODE))

    def decode_rate(self) -> float | None:
        """A lone decoder's normalizer: the highest expected tokens per ms, one token a graph; None unmeasured."""
        return max((1.0 / g.duration_ms for g in self.decode), default=None)

    def token_rate(self, resident: Resident) -> float | None:
        """The normalizer of the resident's current phase, tokens per ms; None when none is measured."""
        if not resident.prefilling:
            return self.decode_rate()
        remaining = resident.remaining_prompt
        rates = (min(g.shape.prefill_capacity, remaining) / g.duration_ms for g in self.prefill)
        return max(rates, default=None)

    def delivery_rate(self) -> float | None:
        """The highest deliveries per ms of one stream over graphs that deliver; None when none is measured."""
        return self.decode_rate()

    def decode_sigma_ms(self, streams: int) -> float:
        """The decode family's reference interval for `streams` delivery-bearing streams, in ms.

        sigma = K*T/min(B, k) of the measured graph that minimises T/min(B, k), the first in catalog order on a
        tie. Decode is the only generation family yet, so k = K = streams. 0 when none is measured.
        """
        if streams == 0 or not self.decode:
            return 0.0
        best = min(self.decode, key=lambda g: g.duration_ms / min(g.shape.batch_capacity, streams))
        return streams * best.duration_ms / min(best.shape.batch_capacity, streams)
