"""Decisions: which plans ran and why, how good predictions were, by how much the winner won, under which policy."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards import promql
from deploy.dashboards.board import Panel, board, instances, kinds, runs
from deploy.dashboards.panels import AMBER, RED, heat, listing, timeline
from deploy.dashboards.targets import Sql, ask, ask_buckets

KIND = 'kind=~"$kind"'
CHOSEN = (
    "minute >= date_trunc('minute', $__timeFrom()::timestamptz) AND minute <= $__timeTo() "
    "AND run_id IN (${run:sqlstring}) AND kind IN (${kind:sqlstring})"
)
"""Of rows that stand for a minute, also the one in which the time range begins."""
CHOSEN_PLANS = "$__timeFilter(committed_at) AND run_id IN (${run:sqlstring}) AND kind IN (${kind:sqlstring})"

BY_SHAPE = f"""
SELECT minute AS "time", shape AS metric, sum(plans) AS value
FROM shape_minutes
WHERE {CHOSEN}
GROUP BY minute, shape
ORDER BY minute, shape
"""
BY_REASON = f"""
SELECT minute AS "time", reason AS metric, sum(plans) AS value
FROM plan_minutes
WHERE {CHOSEN}
GROUP BY minute, reason
ORDER BY minute, reason
"""
PREDICTED = f"""
SELECT minute AS "time", sum(selected_cost_ms_sum) / sum(plans) AS "predicted",
       sum(device_ms_sum) / sum(plans) AS "observed"
FROM plan_minutes
WHERE {CHOSEN} AND reason <> 'discovery'
GROUP BY minute
ORDER BY minute
"""
SHAPES = f"""
WITH buckets AS (
    SELECT shape, bucket, max(device_to_ms) AS up_to_ms, max(device_ms_max) AS largest_ms, sum(plans) AS plans
    FROM device_histogram
    WHERE {CHOSEN}
    GROUP BY shape, bucket
), running AS (
    SELECT shape, coalesce(up_to_ms, largest_ms) AS up_to_ms, sum(plans) OVER (PARTITION BY shape) AS plans,
           sum(plans) OVER (PARTITION BY shape ORDER BY bucket) AS plans_so_far
    FROM buckets
), tails AS (
    SELECT shape, min(up_to_ms) AS p99_ms FROM running WHERE plans_so_far * 100 >= plans * 99 GROUP BY shape
), sums AS (
    SELECT shape, sum(plans) AS plans, sum(device_ms_sum) AS device_ms, sum(selected_cost_ms_sum) AS predicted_ms,
           max(device_ms_max) AS longest_ms, sum(output_tokens) AS output_tokens
    FROM shape_minutes
    WHERE {CHOSEN}
    GROUP BY shape
)
SELECT shape, plans, device_ms, device_ms / plans AS mean_ms, p99_ms, longest_ms,
       device_ms / nullif(predicted_ms, 0) AS observed_over_predicted, output_tokens
FROM sums
JOIN tails USING (shape)
ORDER BY device_ms DESC
"""
OBSERVATION_AGE = f"""
SELECT $__timeGroupAlias(committed_at,$__interval), kind AS metric, max(observation_age_ms) AS value
FROM plans
WHERE {CHOSEN_PLANS} AND observation_age_ms IS NOT NULL
GROUP BY 1, 2
ORDER BY 1, 2
"""
COST_STATES = f"""
SELECT $__timeGroupAlias(committed_at,$__interval), cost_state AS metric, count(*) AS value
FROM plans
WHERE {CHOSEN_PLANS}
GROUP BY 1, 2
ORDER BY 1, 2
"""
POLICY_HISTORY = """
SELECT v.version, v.state, v.applied_at, v.actor, v.note, v.preset, v.parent_version, coalesce(p.plans, 0) AS plans
FROM policy_versions AS v
LEFT JOIN (
    SELECT policy_version, count(*) AS plans FROM plans WHERE $__timeFilter(committed_at) GROUP BY policy_version
) AS p ON p.policy_version = v.version
ORDER BY v.version DESC
LIMIT 50
"""


def decisions() -> dashboard.Dashboard:
    """The dashboard."""
    rows = {
        "What ran and why": what_ran(),
        "Predicted and observed": predictions(),
        "How decided": [*how_decided(), *under_which_policy()],
    }
    about = (
        "Which graphs the scheduler picked, for which reason, at which predicted and observed cost. Purple lines are "
        "changes of the policy, with who made them and why."
    )
    return board("helios-decisions", "Decisions", about, rows, [instances(), runs(), kinds()])


def what_ran() -> list[Panel]:
    """Plans by shape and reason."""
    spent = promql.rate("flare_scheduler_execution_nanoseconds_total", by=("class",))
    return [
        timeline(
            "Plans by shape",
            "Completed plans in each minute. Many plans of small batches under load: requests arrive one by one, or a "
            "policy prefers short gaps; compare with the policy's changes.",
            "short",
            Sql(BY_SHAPE),
            stacked=True,
            bars=True,
        ),
        timeline(
            "Plans by reason",
            "Completed plans in each minute by why they ran. Nearly all should be ordinary or solo_prefill, or "
            "token_budget under that preference; discovery ends when every graph has run once.",
            "short",
            Sql(BY_REASON),
            stacked=True,
            bars=True,
        ),
        timeline(
            "Device time by reason",
            "Seconds of device time per second. Refresh and learning have their budgets: see Exploration.",
            "s",
            ask(f"{spent} / 1e9", "{{class}}"),
        ),
        timeline(
            "Graphs by what is known of their duration",
            "Stale: measured longer ago than estimate_ttl_ns. On an idle server all become stale, which harms nobody; "
            "under load at least the graphs that run should be fresh, else an alert fires.",
            "short",
            ask(promql.added(promql.gauge("flare_graph_estimates"), "state"), "{{state}}"),
            stacked=True,
        ),
    ]


def predictions() -> list[Panel]:
    """How good the costs are that decisions rest on."""
    return [
        timeline(
            "Predicted and observed device time",
            "Means over all plans of a minute but discovery. Apart for minutes: something else uses the machine, or "
            "adaptation is too slow.",
            "ms",
            Sql(PREDICTED),
        ),
        timeline(
            "Error of predictions",
            "Mean of |observed - predicted| / predicted by kind. Above 50 % decisions are near to guesses: look for "
            "other load on the machine.",
            "percentunit",
            ask(promql.mean("flare_graph_cost_error_ratio", KIND, by=("kind",)), "{{kind}}"),
            limits={0.2: AMBER, 0.5: RED},
        ),
        timeline(
            "Predictions within 10 and 50 %",
            "Share of executed graphs whose device time was that near to its estimate. An alert fires where less than "
            "three quarters stay within 50 %.",
            "percentunit",
            ask(promql.share_within(0.1, "flare_graph_cost_error_ratio", KIND), "within 10 %"),
            ask(promql.share_within(0.5, "flare_graph_cost_error_ratio", KIND), "within 50 %"),
            largest=1,
        ),
        timeline(
            "Age of the observation behind a decision",
            "The oldest in each interval, by kind. It grows with a graph that is seldom chosen; beyond estimate_ttl_ns "
            "the estimate counts as stale.",
            "ms",
            Sql(OBSERVATION_AGE),
        ),
        listing(
            "Shapes",
            "Device time by shape over the time range, the costliest first. observed_over_predicted far from 1: that "
            "shape is weighed wrongly. p99 is rounded up to a bound of the histogram.",
            SHAPES,
            units=dict.fromkeys(("device_ms", "mean_ms", "p99_ms", "longest_ms"), "ms"),
        ),
    ]


def how_decided() -> list[Panel]:
    """Margins, and the time that decisions take."""
    margin = "flare_scheduler_margin_ratio"
    plan_seconds = "flare_scheduler_plan_seconds"
    return [
        timeline(
            "Margin over the runner-up",
            "(score - runner-up's score) / |score|. Near 0 a small change of a coefficient or cost decides otherwise.",
            "percentunit",
            ask(promql.quantile(0.1, margin), "p10"),
            ask(promql.quantile(0.5, margin), "p50"),
            ask(promql.mean(margin), "mean"),
            signed=True,
        ),
        timeline(
            "Close decisions",
            "Share of decisions that were won by 1 % or less. helios explain RUN/FENCE shows the runner-ups of one.",
            "percentunit",
            ask(promql.share_within(0.01, margin), "won by 1 % or less"),
            largest=1,
        ),
        timeline(
            "Time to decide",
            "CPU time of one decision. It grows with the requests that are resident; helios bench plan measures this "
            "machine without load.",
            "s",
            ask(promql.quantile(0.5, plan_seconds), "p50", exemplars=True),
            ask(promql.quantile(0.99, plan_seconds), "p99", exemplars=True),
            ask(promql.mean(plan_seconds), "mean"),
        ),
        heat(
            "Times to decide",
            "How many decisions took how long. A second band at high times: another process takes the engine's core.",
            "s",
            ask_buckets(promql.buckets(plan_seconds)),
        ),
    ]


def under_which_policy() -> list[Panel]:
    """What decisions rest on besides costs, and who changed it."""
    return [
        timeline(
            "Estimates that decided",
            "Plans by the state of the winner's estimate. Unknown ones are discoveries; many stale ones: the catalog "
            "has more graphs than traffic or refresh keeps fresh.",
            "short",
            Sql(COST_STATES),
            stacked=True,
            bars=True,
        ),
        timeline(
            "Policy",
            "Numeric coefficients that the next plan uses, on a logarithmic scale. Change them at /dashboard/policy or "
            "with helios policy set.",
            "none",
            ask(f"max by (coefficient) ({promql.gauge('flare_scheduler_policy')})", "{{coefficient}}"),
            logarithmic=True,
        ),
        listing(
            "Policy versions",
            "Who changed the policy, when and why, and the plans of the time range that each version decided. "
            "helios policy rollback goes back.",
            POLICY_HISTORY,
            height=8,
            widths={"version": 80, "state": 90, "applied_at": 160, "note": 420, "plans": 90},
        ),
    ]
