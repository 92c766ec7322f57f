"""Exploration: what the scheduler spends to learn, and the bounds that it keeps."""

from __future__ import annotations

import math

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards import promql
from deploy.dashboards.board import Panel, board, instances, runs, server
from deploy.dashboards.panels import AMBER, GREEN, RED, listing, number, timeline
from deploy.dashboards.plans import PLAN_LINK
from deploy.dashboards.targets import Sql, ask
from scheduler.ledgers import ACCEPTANCE_DENOMINATOR, CAP_NS, TIMING_DENOMINATOR

CAP_MS = CAP_NS / 1e6
NANOSECONDS = "flare_scheduler_execution_nanoseconds_total"
LEDGERS = {
    "timing_refresh": ("timing", TIMING_DENOMINATOR, "0.2 %"),
    "acceptance_learning": ("acceptance", ACCEPTANCE_DENOMINATOR, "1 %"),
}
"""Class of execution: the ledger's columns, ordinary time that earns one unit of credit, its share."""

EPISODES = """
SELECT committed_at, fence, reason, shape, exploration_credit_ms AS credit, selected_cost_ms AS predicted,
       device_ms AS device, observation_age_ms AS observation_age, outcome, run_id
FROM plan_timeline
WHERE $__timeFilter(committed_at) AND run_id IN (${run:sqlstring})
  AND reason IN ('timing_refresh', 'acceptance_learning', 'discovery')
ORDER BY committed_at DESC, fence DESC
LIMIT 200
"""


def ledger_query(columns: str, denominator: int) -> str:
    """A ledger over time, of the newest plan in each interval: what it earned and kept, spent, holds, and may spend."""
    return f"""
SELECT DISTINCT ON (1) $__timeGroupAlias(committed_at,$__interval),
       {columns}_spent_ms + {columns}_credit_ms AS "earned and kept", {columns}_spent_ms AS "spent",
       {columns}_credit_ms AS "balance", {columns}_ordinary_ms / {denominator} AS "bound"
FROM plans
WHERE $__timeFilter(committed_at) AND run_id IN (${{run:sqlstring}})
ORDER BY 1, committed_at DESC, fence DESC
"""


def discovery_query() -> str:
    """Time spent on graphs without an estimate so far, of the newest plan in each interval."""
    return """
SELECT DISTINCT ON (1) $__timeGroupAlias(committed_at,$__interval), discovery_ms AS "discovery"
FROM plans
WHERE $__timeFilter(committed_at) AND run_id IN (${run:sqlstring})
ORDER BY 1, committed_at DESC, fence DESC
"""


def exploration() -> dashboard.Dashboard:
    """The dashboard."""
    rows = {"Now": now(), "Ledgers": ledgers(), "What was explored": episodes()}
    about = "What learning costs: credit earned, spent and held by each ledger, its bound, and the plans it paid for."
    return board("helios-exploration", "Exploration", about, rows, [instances(), runs(), server()])


def spent_share(reason: str) -> str:
    """Share of all device time that went to plans of this class."""
    of_class = promql.rate(NANOSECONDS, f'class="{reason}"')
    return promql.ratio(of_class, promql.rate(NANOSECONDS))


def now() -> list[Panel]:
    """One number for each ledger, and for discovery."""
    credit = [
        number(
            f"Credit, {reason}",
            f"Credit of the ledger at the newest plan. A probe needs {CAP_MS:g} ms; below 0 the last one cost more "
            "than it had, and ordinary work pays it off. Always full: nothing needs to be learned.",
            "ms",
            ask(f"min({promql.gauge('flare_scheduler_credit_milliseconds', f'ledger={chr(34)}{reason}{chr(34)}')})"),
            width=6,
            limits={-math.inf: AMBER, 0: GREEN},
            decimals=2,
        )
        for reason in LEDGERS
    ]
    spent = [
        number(
            f"Spent, {reason}",
            f"Share of device time. Above {share} over an hour the bound is broken, and an alert fires.",
            "percentunit",
            ask(spent_share(reason)),
            width=6,
            decimals=2,
        )
        for reason, (_, _, share) in LEDGERS.items()
    ]
    return [*credit, *spent]


def ledgers() -> list[Panel]:
    """Each ledger exactly, from SQL."""
    exact = [
        timeline(
            f"Ledger of {reason}",
            f"Since the run began (choose one above), in ms of device time: {share} of ordinary time may be spent "
            "(bound), and one probe may go beyond it. Earned and kept falls when the server is idle: that discards "
            "credit.",
            "ms",
            Sql(ledger_query(columns, denominator)),
            signed=True,
        )
        for reason, (columns, denominator, share) in LEDGERS.items()
    ]
    return [
        *exact,
        timeline(
            "Share of device time",
            "By what the time was spent on. Refresh stays under 0.2 % and learning under 1 % of ordinary time, but for "
            "the last probe; discovery is over when every graph has run once.",
            "percentunit",
            *(ask(spent_share(reason), reason) for reason in (*LEDGERS, "discovery")),
            limits={0.01: AMBER, 0.05: RED},
        ),
        timeline(
            "Time spent on discovery",
            "Since the run began: graphs that had no estimate. It should end soon after the start.",
            "ms",
            Sql(discovery_query()),
        ),
    ]


def episodes() -> list[Panel]:
    """The plans themselves."""
    return [
        timeline(
            "Probes per second",
            "Executed graphs by class, without those that earn credit: ordinary ones and those of a token budget.",
            "short",
            ask(
                promql.rate("flare_scheduler_executions_total", 'class!~"ordinary|token_budget"', by=("class",)),
                "{{class}}",
            ),
            width=24,
        ),
        listing(
            "Last probes",
            "The plans that ran to learn, newest first; a fence leads to the plan's page, with what lost against it.",
            EPISODES,
            units={**dict.fromkeys(("credit", "predicted", "device", "observation_age"), "ms"), "fence": "none"},
            widths={"committed_at": 160, "reason": 150, "shape": 180},
            links={"fence": PLAN_LINK},
        ),
    ]
