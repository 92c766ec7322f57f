"""The episode of exploration that a probe was: what its ledger held, what it was charged, and how it ended."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from service.store.tables import plans

_LEDGERS = {"timing_refresh": "timing", "acceptance_learning": "acceptance"}
_CHARGED_WITHIN = 64
"""Plans. A probe is charged when it completes, and at most a few plans are committed before that."""


def episode_of(connection: sa.Connection, plan: dict[str, Any]) -> dict[str, Any] | None:
    """The episode that this row of `plans` was, or None where no ledger paid for it.

    `charged_ms` is what the ledger's `spent` grew by at the next plan that shows more; None while none does.
    """
    ledger = _LEDGERS.get(plan["reason"])
    if ledger is None:
        return None
    spent, before = plans.c[f"{ledger}_spent_ms"], plan[f"{ledger}_spent_ms"]
    behind = plans.c.fence.between(plan["fence"] + 1, plan["fence"] + _CHARGED_WITHIN)
    query = sa.select(spent).where(plans.c.run_id == plan["run_id"], behind, spent > before)
    after = connection.execute(query.order_by(plans.c.fence).limit(1)).scalar()
    return {
        "run_id": plan["run_id"],
        "ledger": plan["reason"],
        "fence": plan["fence"],
        "opened_at": plan["committed_at"],
        "closed_at": plan["completed_at"],
        "credit_before_ms": plan[f"{ledger}_credit_ms"],
        "charged_ms": None if after is None else after - before,
        "outcome": plan["outcome"],
    }
