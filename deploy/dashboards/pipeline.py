"""Pipeline: the way of a record from the engine's journal to SQL and the collector, and what was lost on it."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards import promql
from deploy.dashboards.board import Panel, board, instances
from deploy.dashboards.panels import AMBER, RED, listing, number, timeline
from deploy.dashboards.targets import ask

SINK_OFFSETS = """
SELECT sink, journal_id, segment, "offset", sequence AS records_delivered,
       max(sequence) OVER (PARTITION BY journal_id) - sequence AS records_behind_the_first, run_id, updated_at
FROM journal_offsets
ORDER BY updated_at DESC, sink
LIMIT 20
"""
GAPS = """
SELECT r.run_id, r.started_at, r.ended_at, r.end_reason, count(g.id) AS gaps,
       coalesce(sum(g.to_fence - g.from_fence + 1), 0) AS plans_missing, max(g.noticed_at) AS last_noticed_at,
       max(g.reason) AS a_reason
FROM engine_runs AS r
LEFT JOIN trace_gaps AS g ON g.run_id = r.run_id
GROUP BY r.run_id, r.started_at, r.ended_at, r.end_reason
ORDER BY r.started_at DESC
LIMIT 20
"""
SIZES = """
SELECT coalesce(whole.relname, c.relname) AS table_name, sum(pg_total_relation_size(c.oid)) AS bytes_with_indexes,
       sum(greatest(c.reltuples, 0)) AS about_rows, count(whole.relname) AS partitions
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
LEFT JOIN pg_class AS whole ON whole.oid = i.inhparent
WHERE n.nspname = current_schema() AND c.relkind = 'r'
GROUP BY 1
ORDER BY bytes_with_indexes DESC
"""


def pipeline() -> dashboard.Dashboard:
    """The dashboard."""
    rows = {"Now": now(), "Journal": journal(), "Sinks": sinks(), "Store": store()}
    about = "How far the trace is behind, how large the journal and the store are, and what was lost."
    return board("helios-pipeline", "Pipeline", about, rows, [instances()], annotated=False)


def now() -> list[Panel]:
    """One number each."""
    lag = "flare_trace_lag_seconds"
    return [
        number(
            "SQL behind",
            "Age of the oldest record that the store lacks. Beyond 30 s an alert fires: is the database reachable, and "
            "fast enough?",
            "s",
            ask(f"max({promql.gauge(lag, SINK_SQL)})"),
            width=4,
            limits={5: AMBER, 30: RED},
        ),
        number(
            "Spans behind",
            "Age of the oldest record whose spans the collector lacks; 0 without --otlp-endpoint.",
            "s",
            ask(f"max({promql.gauge(lag, SINK_OTLP)})"),
            width=4,
            limits={60: AMBER},
        ),
        number(
            "Records lost",
            "Since the recorder began. Above 0 the rows of trace_gaps say which; the alert's runbook what to do.",
            "none",
            ask(promql.added(promql.total("flare_trace_lost_records_total"))),
            width=4,
            limits={1: RED},
        ),
        number(
            "Spans lost",
            "Since the recorder began: refused by the collector for good, or removed with the journal.",
            "none",
            ask(promql.added(promql.total("flare_trace_lost_spans_total"))),
            width=4,
            limits={1: AMBER},
        ),
        number(
            "Journal",
            "Bytes of the journal's files. It shrinks when sinks have read them; at --journal-budget records are lost.",
            "bytes",
            ask(promql.added(promql.gauge("flare_journal_bytes"))),
            width=4,
        ),
        number(
            "Write-ahead log",
            "SQLite's; 0 on PostgreSQL. Growing: a reader keeps a transaction open.",
            "bytes",
            ask(promql.added(promql.gauge("flare_store_wal_bytes"))),
            width=4,
            limits={256 * 2**20: AMBER},
        ),
    ]


SINK_SQL = 'sink="sql"'
SINK_OTLP = 'sink="otlp"'


def journal() -> list[Panel]:
    """Depth, losses and troubles."""
    return [
        timeline(
            "Depth of the journal",
            "Bytes on disk, reserved ones included, and --journal-budget. Rising steadily: a sink has stopped. An "
            "alert fires beyond 80 % of the budget.",
            "bytes",
            ask(promql.gauge("flare_journal_bytes"), "{{instance}}"),
            ask(promql.gauge("flare_journal_budget_bytes"), "budget of {{instance}}"),
        ),
        timeline(
            "Age of the oldest undelivered record",
            "By sink. Rising by a second each second: that sink delivers nothing. An alert fires beyond 30 s for SQL.",
            "s",
            ask(promql.gauge("flare_trace_lag_seconds"), "{{sink}} {{instance}}"),
            limits={30: RED},
        ),
        timeline(
            "Records lost per second",
            "By cause. disk_full: make room; over_budget: a sink is down for too long, or --journal-budget is small; "
            "write_failed: look at the disk.",
            "short",
            ask(promql.rate("flare_journal_lost_records_total", by=("cause",)), "journal: {{cause}}"),
            ask(promql.rate("flare_trace_lost_records_total"), "records in all"),
            ask(promql.rate("flare_trace_lost_spans_total"), "spans"),
        ),
        timeline(
            "Troubles",
            "1 while the journal loses records, or cannot be synced, for this cause. sync_failed loses nothing unless "
            "the power fails.",
            "none",
            ask(f"max by (cause) ({promql.gauge('flare_journal_trouble')})", "{{cause}}"),
            ask(promql.rate("flare_journal_sync_failures_total"), "failed syncs per second"),
            ask(promql.rate("flare_ipc_malformed_messages_total"), "malformed messages per second"),
            largest=1,
        ),
    ]


def sinks() -> list[Panel]:
    """What arrives."""
    return [
        timeline(
            "Records delivered per second",
            "By sink; equal when both keep up. Otlp stays at 0 without --otlp-endpoint.",
            "short",
            ask(promql.rate("flare_trace_records_total", by=("sink",)), "{{sink}}"),
        ),
        timeline(
            "Scrapes",
            "Seconds that a scrape of the server takes. Near the scrape's timeout: the server's event loop is late.",
            "s",
            ask("scrape_duration_seconds{" + promql.INSTANCE + "}", "{{instance}}"),
        ),
        listing(
            "Offsets",
            "How far each sink has read each journal; the one that is behind keeps the journal's files.",
            SINK_OFFSETS,
            height=7,
        ),
    ]


def store() -> list[Panel]:
    """What is in SQL."""
    return [
        listing(
            "Runs and what they lack",
            "Gaps of the trace by run, newest first: plans_missing can never reach the store; a_reason is one of the "
            "reasons, SELECT * FROM trace_gaps has all.",
            GAPS,
            width=14,
            height=10,
        ),
        listing(
            "Size of the store",
            "By table. --retention-bytes and --retention-days bound it; helios db prune does it at once.",
            SIZES,
            width=10,
            height=10,
            units={"bytes_with_indexes": "bytes", "about_rows": "short"},
        ),
    ]
