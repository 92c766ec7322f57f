"""Plans: the last decisions and requests from PostgreSQL, each with its page in the control room."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards.board import Panel, board, kinds, runs, server
from deploy.dashboards.panels import listing, timeline
from deploy.dashboards.targets import Sql

PLAN_LINK = (
    "Why this plan ran",
    "${server:raw}/dashboard/plan/${__data.fields.run_id:percentencode}/${__value.raw}",
)
REQUEST_LINK = (
    "Its plans on the timeline",
    "${server:raw}/dashboard/timeline?request=${__data.fields.request_id:percentencode}",
)
CHOSEN = "$__timeFilter(committed_at) AND run_id IN (${run:sqlstring}) AND kind IN (${kind:sqlstring})"

LAST_PLANS = f"""
SELECT committed_at, fence, shape, reason, active_rows AS rows, candidates AS priced, margin,
       selected_cost_ms AS predicted, device_ms AS device, gap_ms AS idle_before, prompt_tokens AS prompt,
       output_tokens AS output, policy_version AS policy, outcome, run_id
FROM plan_timeline
WHERE {CHOSEN}
ORDER BY committed_at DESC, run_id, fence DESC
LIMIT 200
"""
RUNNER_UPS = f"""
SELECT a.kind || coalesce(' + ' || a.following_kind, '') AS runner_up, a.barred_by, count(*) AS plans,
       max(a.active_rows) AS most_rows
FROM plan_alternatives AS a
JOIN (SELECT run_id, fence FROM plans WHERE {CHOSEN}) AS p USING (run_id, fence)
GROUP BY 1, 2
ORDER BY plans DESC
"""
GAPS = f"""
SELECT $__timeGroupAlias(committed_at,$__interval), max(gap_ms) AS "longest", sum(gap_ms) / count(gap_ms) AS "mean"
FROM plan_timeline
WHERE {CHOSEN} AND gap_ms IS NOT NULL
GROUP BY 1
ORDER BY 1
"""
SLOWEST = """
SELECT arrived_at, request_id, extract(epoch FROM finished_at - arrived_at) * 1000 AS total, tokenize_ms AS tokenize,
       queue_ms AS queue, prefill_ms AS prefill, decode_ms AS decode, publish_ms AS publish, prompt_tokens AS prompt,
       cached_tokens AS cached, output_tokens AS output, preemptions AS preempted, finish_reason AS ended, error
FROM requests
WHERE $__timeFilter(arrived_at) AND run_id IN (${run:sqlstring}) AND finished_at IS NOT NULL
ORDER BY total DESC
LIMIT 100
"""
PHASES = """
SELECT $__timeGroupAlias(finished_at,$__interval), sum(tokenize_ms) AS "tokenize", sum(queue_ms) AS "queue",
       sum(prefill_ms) AS "prefill", sum(decode_ms) AS "decode", sum(publish_ms) AS "publish"
FROM requests
WHERE $__timeFilter(finished_at) AND run_id IN (${run:sqlstring})
GROUP BY 1
ORDER BY 1
"""


def plans() -> dashboard.Dashboard:
    """The dashboard."""
    about = "The last plans and the slowest requests, out of PostgreSQL; each leads to its page in the control room."
    rows = {"Plans": last_plans(), "Requests": last_requests()}
    return board("helios-plans", "Plans", about, rows, [runs(), kinds(), server()], past="now-15m")


def last_plans() -> list[Panel]:
    """The plans, what lost against them, and what stood between them."""
    return [
        listing(
            "Last plans",
            "The 200 newest. A fence leads to the plan's page: its score, what lost and why. margin near 0: a close "
            "decision; idle_before: the device had nothing to do before it.",
            LAST_PLANS,
            height=14,
            units={
                **dict.fromkeys(("predicted", "device", "idle_before"), "ms"),
                "margin": "percentunit",
                "fence": "none",
            },
            widths={"committed_at": 160, "shape": 150, "reason": 110},
            links={"fence": PLAN_LINK},
        ),
        listing(
            "Runner-ups",
            "What was priced and lost, by what kept it out: none: it only scored lower; pages: more --kv-pages; "
            "unmeasured: it has no duration yet.",
            RUNNER_UPS,
            width=12,
            height=8,
        ),
        timeline(
            "Device idle before a plan",
            "Where it grows while requests wait, the host is the limit; see Time to decide on Decisions.",
            "ms",
            Sql(GAPS),
        ),
    ]


def last_requests() -> list[Panel]:
    """Where requests spend their time."""
    return [
        timeline(
            "Time of requests by phase",
            "Of the requests that ended in each interval, added up. The largest phase is what clients feel.",
            "ms",
            Sql(PHASES),
            width=24,
            stacked=True,
            bars=True,
        ),
        listing(
            "Slowest requests",
            "The 100 that took longest. An id leads to its plans; queue: it waited for a place, prefill: "
            "its prompt was long or others came first.",
            SLOWEST,
            height=12,
            units=dict.fromkeys(("total", "tokenize", "queue", "prefill", "decode", "publish"), "ms"),
            widths={"arrived_at": 160, "request_id": 190, "error": 160},
            links={"request_id": REQUEST_LINK},
        ),
    ]
