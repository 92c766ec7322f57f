"""Workloads without a file."""

from __future__ import annotations

from scheduler.simulation.workload import NS_PER_S, Arrival, Workload


def of_counts(counts):
    """A workload from (time_s, prompt_tokens, output_tokens), in order of time."""
    arrivals = [
        Arrival(i, round(time_s * NS_PER_S), prompt, output) for i, (time_s, prompt, output) in enumerate(counts)
    ]
    return Workload(tuple(arrivals), {})
