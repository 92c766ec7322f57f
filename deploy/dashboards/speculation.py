"""Speculation: how many drafts are accepted, by source and depth, and which rows were in vain."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards import promql
from deploy.dashboards.board import Panel, board, instances, runs, sources
from deploy.dashboards.panels import AMBER, gauges, heat, listing, number, timeline
from deploy.dashboards.targets import ask, ask_buckets, ask_now

SOURCE = 'source=~"$source"'
ACCEPTED = "flare_speculative_accepted_tokens_total"
OFFERED = "flare_speculative_offered_tokens_total"
DRAFTED = "flare_speculative_draft_tokens_total"
ROWS = "flare_speculative_target_rows_total"
ROUNDS = "flare_speculative_rounds_total"
LENGTH = "flare_speculative_accepted_length"

ROWS_BY_SHAPE = """
SELECT shape, count(*) AS plans, sum(logical_rows) AS used_rows,
       sum(offered_tokens - accepted_tokens) AS rejected_drafts,
       sum(target_rows + prefill_capacity - logical_rows) AS padding_rows, sum(accepted_tokens) AS accepted_drafts,
       sum(output_tokens) AS output_tokens, sum(device_ms) AS device_ms,
       1000 * sum(output_tokens) / nullif(sum(device_ms), 0) AS tokens_per_device_second
FROM plan_timeline
WHERE $__timeFilter(committed_at) AND run_id IN (${run:sqlstring})
  AND kind IN ('speculative', 'mixed') AND outcome = 'completed'
GROUP BY shape
ORDER BY device_ms DESC
"""


def speculation() -> dashboard.Dashboard:
    """The dashboard."""
    rows = {"Now": now(), "Accepted": accepted(), "Rows": wasted()}
    about = (
        "Drafts: how many are accepted, by where they come from and how deep they are, and the rows that were in vain."
    )
    return board("helios-speculation", "Speculation", about, rows, [instances(), sources(), runs()])


def now() -> list[Panel]:
    """One number each."""
    rejected = f"({promql.rate(OFFERED, SOURCE)} - {promql.rate(ACCEPTED, SOURCE)})"
    return [
        number(
            "Rounds per second",
            "Lanes of graphs that verified drafts. 0 with --draft-tokens: plain decoding is worth more; see Decisions.",
            "short",
            ask(promql.rate(ROUNDS, SOURCE)),
            width=6,
            decimals=1,
        ),
        number(
            "Accepted drafts per round",
            "Mean. Each is one token more than plain decoding gives.",
            "none",
            ask(promql.mean(LENGTH, SOURCE)),
            width=6,
            decimals=2,
        ),
        number(
            "Accepted of those verified",
            "Share. Low: verification rows are wasted; fewer --draft-tokens, or adaptive verification.",
            "percentunit",
            ask(promql.ratio(promql.rate(ACCEPTED, SOURCE), promql.rate(OFFERED, SOURCE))),
            width=6,
            decimals=0,
        ),
        number(
            "Rows in vain",
            "Share of verification rows whose draft was rejected.",
            "percentunit",
            ask(promql.ratio(rejected, promql.rate(ROWS, SOURCE))),
            width=6,
            limits={0.5: AMBER},
            decimals=0,
        ),
    ]


def accepted() -> list[Panel]:
    """Acceptance by source and depth."""
    depth = ("source", "depth")
    at_depth = promql.ratio(
        promql.increase(ACCEPTED, SOURCE, by=depth), f"({promql.increase(OFFERED, SOURCE, by=depth)} > 0)"
    )
    return [
        timeline(
            "Accepted drafts per round by source",
            "Mean. Learned drafts come from a head, copies from the request's own text.",
            "none",
            ask(promql.mean(LENGTH, SOURCE, by=("source",)), "{{source}}"),
        ),
        heat(
            "Lengths of accepted drafts",
            "How many rounds accepted how many drafts. All at 0: the drafts do not fit this text.",
            "none",
            ask_buckets(promql.buckets(LENGTH, SOURCE)),
        ),
        timeline(
            "Accepted by depth",
            "Share of the drafts that were verified at each depth. Where it falls off, deeper drafts cost more than "
            "they bring.",
            "percentunit",
            ask(
                promql.ratio(
                    promql.rate(ACCEPTED, SOURCE, by=depth), f"({promql.rate(OFFERED, SOURCE, by=depth)} > 0)"
                ),
                "{{source}} {{depth}}",
            ),
            largest=1,
        ),
        gauges(
            "Accepted by depth, whole time range",
            "The same, over the dashboard's time range.",
            "percentunit",
            ask_now(at_depth, "{{source}} {{depth}}"),
            largest=1,
        ),
    ]


def wasted() -> list[Panel]:
    """Where rows went."""
    drafted, offered, hits = (promql.rate(name, SOURCE) for name in (DRAFTED, OFFERED, ACCEPTED))
    return [
        timeline(
            "Drafts per second",
            "Made, verified and accepted. Made above verified: drafts that no row was given; the catalog's widths or "
            "--speculative-token-capacity are small.",
            "short",
            ask(drafted, "made"),
            ask(offered, "verified"),
            ask(hits, "accepted"),
        ),
        timeline(
            "Verification rows per second",
            "Rows by what became of them: the pending token's row is always used, a rejected draft's was in vain.",
            "short",
            ask(promql.rate(ROUNDS, SOURCE), "pending token"),
            ask(hits, "accepted draft"),
            ask(f"{offered} - {hits}", "rejected draft"),
            stacked=True,
        ),
        listing(
            "Rows by shape",
            "padding_rows belonged to nobody: a smaller shape would have done. rejected_drafts were wrong. "
            "tokens_per_device_second compares shapes.",
            ROWS_BY_SHAPE,
            units={"device_ms": "ms"},
        ),
    ]
