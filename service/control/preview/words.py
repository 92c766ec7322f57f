"""What people should know of a preview's result, in whole sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.control.preview.messages import Figures
from service.control.preview.recording import Costs, Recording
from service.control.preview.window import Chosen

CLOSED_LOOP = (
    "Requests arrive when they were recorded to. Clients that wait for an answer before they ask again would have "
    "asked sooner or later under another policy."
)
OTHER_POLICY = (
    "Some of the recorded plans were made by other coefficients than those in force, so the difference to what "
    "happened is not the simulator's error alone."
)


class Done(Protocol):
    """One policy's replay."""

    @property
    def figures(self) -> Figures: ...
    @property
    def estimated_plans(self) -> int: ...


def notes_of(
    chosen: Chosen, recordings: Sequence[Recording], costs: Costs, drafts: bool, done: Sequence[Done], same: bool
) -> list[str]:
    """The notes, the most important first. `drafts`: learned drafts are replayed."""
    notes = [] if same else [OTHER_POLICY]
    notes += [chosen.sampled.words] if chosen.sampled is not None else []
    notes += [chosen.shortened] if chosen.shortened else []
    notes.append(CLOSED_LOOP)
    estimated, plans = sum(of.estimated_plans for of in done), sum(of.figures.plans for of in done)
    if estimated:
        notes.append(
            f"{estimated:,} of {plans:,} simulated plans used shapes that did not run in this window; they take an "
            "earlier measurement, or an estimate from shapes of about their size."
        )
    opened = sum(comer.open_at_start for recording in recordings for comer in recording.comers)
    if opened:
        notes.append(
            f"{opened:,} requests were under way when the window began; they go on with what was left of them, and "
            "count for the load but not for the times of first and further tokens."
        )
    if any(recording.preempted for recording in recordings):
        notes.append("Requests were set aside for want of KV pages then; the simulator has pages without end.")
    if costs.copied:
        notes.append(
            "Drafts that were copied from a request's own text are left out"
            + ("; learned ones are accepted as often as they were recorded to be." if drafts else ".")
        )
    left_out = sum(recording.left_out for recording in recordings)
    if left_out:
        notes.append(f"{left_out:,} requests that ended without any output are left out.")
    if any(recording.checkpoint is None for recording in recordings):
        notes.append(
            "The scheduler's recorded state is not kept for this window, so the simulated one starts unlearned."
        )
    return notes
