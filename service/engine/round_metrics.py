"""Counters of speculative rounds: one round is one lane of one graph that had drafts to verify."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from service.journal.records import LaneOutcome
from service.telemetry.metric_table import DRAFT_DEPTHS, DRAFT_SOURCES
from service.telemetry.series import Counter
from service.telemetry.shared import MetricsWriter

_DEEPEST = len(DRAFT_DEPTHS)


class _SourceMetrics:
    """The series of one source of drafts."""

    def __init__(self, writer: MetricsWriter, source: str) -> None:
        def by_depth(name: str) -> list[Counter]:
            return [writer.counter(f"flare_speculative_{name}_tokens_total", source, depth) for depth in DRAFT_DEPTHS]

        self.drafted, self.offered, self.accepted = map(by_depth, ("draft", "offered", "accepted"))
        self.rounds = writer.counter("flare_speculative_rounds_total", source)
        self.rows = writer.counter("flare_speculative_target_rows_total", source)
        self.length = writer.histogram("flare_speculative_accepted_length", source)


class RoundMetrics:
    """Moves with each completed graph that drafts."""

    def __init__(self, writer: MetricsWriter) -> None:
        self._sources = {source: _SourceMetrics(writer, source) for source in DRAFT_SOURCES}

    def add(self, rounds: Iterable[tuple[str, LaneOutcome]]) -> None:
        """Count lanes with the sources of their drafts; stores once per depth, however many lanes there are."""
        by_source: dict[str, list[LaneOutcome]] = {}
        for source, outcome in rounds:
            by_source.setdefault(source, []).append(outcome)
        for source, outcomes in by_source.items():
            series = self._sources[source]
            _add_depths(series.drafted, [outcome.draft_tokens for outcome in outcomes])
            _add_depths(series.offered, [outcome.offered_tokens for outcome in outcomes])
            _add_depths(series.accepted, [outcome.accepted_tokens for outcome in outcomes])
            series.rounds.inc(len(outcomes))
            series.rows.inc(sum(outcome.offered_tokens + 1 for outcome in outcomes))
            for outcome in outcomes:
                series.length.observe(outcome.accepted_tokens)


def _add_depths(counters: list[Counter], lengths: list[int]) -> None:
    """Each length counts once at every depth up to it; what is deeper than the table counts at no depth."""
    ending_at = [0] * (_DEEPEST + 1)
    for length in lengths:
        ending_at[min(length, _DEEPEST)] += 1
    reached = list(itertools.accumulate(reversed(ending_at[1:])))
    for counter, lanes in zip(reversed(counters), reached, strict=True):
        if lanes:
            counter.inc(lanes)
