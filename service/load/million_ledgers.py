"""The exploration ledgers of the made-up store: they earn and pay as the scheduler's do (S8), one probe an episode.

A ledger earns a part of ordinary time up to one full credit, and a probe that it pays for may take it into debt.
"""

from __future__ import annotations

import dataclasses

from scheduler.ledgers import ACCEPTANCE_DENOMINATOR, CAP_NS, TIMING_DENOMINATOR
from service.load.episodes import PLANS, PROBE_STEP, STYLES, Row

FULL_MS = CAP_NS / 1e6
ORDINARY_MS = 32.0
"""Of one plan, at a pace of one."""
CHARGED_MS = 35.0
"""For one probe, at a pace of one."""
LEDGERS = {
    "timing": ("timing_refresh", TIMING_DENOMINATOR),
    "acceptance": ("acceptance_learning", ACCEPTANCE_DENOMINATOR),
}
"""Of each ledger the reason of its probes, and the part of ordinary time that it earns."""


@dataclasses.dataclass(slots=True)
class Ledgers:
    """The ledgers as an episode begins."""

    ordinary_ms: float = 0.0
    timing_credit_ms: float = 0.0
    timing_spent_ms: float = 0.0
    acceptance_credit_ms: float = 0.0
    acceptance_spent_ms: float = 0.0


def charge(ledgers: Ledgers, probe: str | None, pace: float) -> Row:
    """The ledgers before an episode, and each one's credit behind its probe, as columns; then the ledgers move on."""
    columns = {f"{name}0": value for name, value in dataclasses.asdict(ledgers).items()}
    for ledger, (reason, denominator) in LEDGERS.items():
        before, behind = (steps * ORDINARY_MS * pace / denominator for steps in (PROBE_STEP, PLANS - PROBE_STEP))
        charged = CHARGED_MS * pace if probe == reason else 0.0
        columns[f"{ledger}_behind_ms0"] = min(FULL_MS, columns[f"{ledger}_credit_ms0"] + before) - charged
        setattr(ledgers, f"{ledger}_credit_ms", min(FULL_MS, columns[f"{ledger}_behind_ms0"] + behind))
        setattr(ledgers, f"{ledger}_spent_ms", columns[f"{ledger}_spent_ms0"] + charged)
    ledgers.ordinary_ms += PLANS * ORDINARY_MS * pace
    return columns


def ledger_columns(least: str) -> dict[str, str]:
    """The ledgers' columns of `plans`, as they were before each plan; `least`: SQL's smaller of two."""
    earned = f"t.step * {ORDINARY_MS} * b.pace"
    columns = {}
    for ledger, (reason, denominator) in LEDGERS.items():
        templates = ", ".join(str(number) for number, style in enumerate(STYLES) if style.probe == reason)
        behind = f"t.step > {PROBE_STEP} AND t.template IN ({templates})"
        credit = (
            f"CASE WHEN {behind} THEN b.{ledger}_behind_ms0 - {PROBE_STEP * ORDINARY_MS} * b.pace / {denominator}.0"
            f" ELSE b.{ledger}_credit_ms0 END + {earned} / {denominator}.0"
        )
        spent = f"b.{ledger}_spent_ms0 + CASE WHEN {behind} THEN {CHARGED_MS} * b.pace ELSE 0 END"
        columns[f"{ledger}_credit_ms"] = f"{least}({FULL_MS}, {credit})"
        columns[f"{ledger}_spent_ms"] = spent
        columns[f"{ledger}_ordinary_ms"] = f"b.ordinary_ms0 + {earned}"
    return columns
