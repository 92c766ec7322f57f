"""Why one recorded plan ran: what its rows say, and whether its decision comes out the same again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from scheduler.plans import LedgerBalances
from service.store.queries import PlanDetail
from service.why.columns import decision_differences
from service.why.errors import NotReplayable
from service.why.recorded import FenceName, recorded_plan, recorded_policy, recorded_run
from service.why.replays import replay_decision
from service.why.stored_log import StoredLog

Row = dict[str, Any]

SAME, DIFFERENT, NOT_REPLAYABLE = "same", "different", "not_replayable"
LEDGERS = tuple(field for field in LedgerBalances.__struct_fields__)


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """How the re-execution went. `result`: same, different or not_replayable; `why` of the last one.

    `from_fence`: last fence of the checkpoint it began from; `plans`: decisions replayed, this one included. Versions
    are of Helios: the run's, and the one that replays.
    """

    result: str
    why: str | None
    differences: list[str]
    from_fence: int | None
    plans: int
    recorded_by: str | None
    replayed_by: str


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """Rows as the store has them. `ledgers_after`: behind the plan's completion, None where that is not known.

    `policy`: see recorded_policy.
    """

    run_id: str
    fence: int
    policy: str | None
    plan: Row
    lanes: list[Row]
    alternatives: list[Row]
    ledgers_before: Row
    ledgers_after: Row | None
    replay: Replay


def explain(
    engine: sa.Engine, name: FenceName, version: str, told: Callable[[int], None] = lambda _done: None
) -> Explanation:
    """The explanation of one plan, re-executed by this program, `version`. Raises NotRecorded and StoreError.

    `told` gets how many decisions were replayed so far.
    """
    recorded, run = recorded_plan(engine, name), recorded_run(engine, name.run_id)
    replay, after = _replayed(engine, name, recorded, run, version, told)
    return Explanation(
        name.run_id,
        name.fence,
        recorded_policy(engine, recorded.plan["policy_version"]),
        recorded.plan,
        recorded.lanes,
        recorded.alternatives,
        {ledger: recorded.plan[ledger] for ledger in LEDGERS},
        None if after is None else {ledger: getattr(after, ledger) for ledger in LEDGERS},
        replay,
    )


def _replayed(
    engine: sa.Engine, name: FenceName, recorded: PlanDetail, run: Row, version: str, told: Callable[[int], None]
) -> tuple[Replay, LedgerBalances | None]:
    recorded_by = _known(run.get("version"))
    try:
        log = StoredLog(engine, name.run_id)
        again = replay_decision(log, name.fence, _known(run.get("catalog_digest")), told)
    except NotReplayable as error:
        return Replay(NOT_REPLAYABLE, str(error), [], None, 0, recorded_by, version), None
    found = decision_differences(again.plan, recorded)
    result = DIFFERENT if found else SAME
    return Replay(result, None, found, again.from_fence, again.plans, recorded_by, version), again.ledgers_after


def _known(value: str | None) -> str | None:
    """A run whose start was lost has "unknown" for it."""
    return None if value == "unknown" else value
