"""SQL text for raw tuples, made once per dialect from the store's tables.

Raw statements, because SQLAlchemy's own parameter handling costs more than SQLite's insert; what they cost is
measured by benchmarks/bench_trace_path.py.
Inserts take every column in the table's order; updates take their values in the order of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from service.store import tables

Row = Sequence[Any]

_UPDATES = {
    "admitted": "UPDATE requests SET admitted_at = ?, cached_tokens = ? WHERE run_id = ? AND request_id = ?",
    "completed": (
        "UPDATE plans SET started_ns = ?, completed_at = ?, completed_ns = ?, outcome = ?, device_ms = ?, wall_ms = ?,"
        " exposed_delivery_ms = ?, prompt_tokens = ?, output_tokens = ?, offered_tokens = ?, draft_tokens = ?,"
        " accepted_tokens = ?"
        " WHERE run_id = ? AND fence = ?"
    ),
    "lane_outcomes": (
        "UPDATE plan_lanes SET offered_tokens = ?, committed_tokens = ?, accepted_tokens = ?"
        " WHERE run_id = ? AND fence = ? AND lane = ?"
    ),
    "deliveries": "UPDATE plans SET deliveries = deliveries + ? WHERE run_id = ? AND fence = ?",
    "lane_deliveries": (
        "UPDATE plan_lanes SET delivered = ?, published_ns = ? WHERE run_id = ? AND fence = ? AND lane = ?"
    ),
    "first_outputs": (
        "UPDATE requests SET first_output_at = ? WHERE run_id = ? AND request_id = ?"
        " AND (first_output_at IS NULL OR first_output_at > ?)"
    ),
    "first_outputs_of_lanes": (
        "UPDATE requests SET first_output_at = ? WHERE run_id = ? AND request_id ="
        " (SELECT request_id FROM plan_lanes WHERE run_id = ? AND fence = ? AND lane = ?)"
        " AND (first_output_at IS NULL OR first_output_at > ?)"
    ),
    "progress": (
        "UPDATE requests SET output_tokens = output_tokens + ?"
        " WHERE run_id = ? AND request_id = ? AND finished_at IS NULL"
    ),
    "progress_of_lanes": (
        "UPDATE requests SET output_tokens = output_tokens + ? WHERE run_id = ? AND request_id ="
        " (SELECT request_id FROM plan_lanes WHERE run_id = ? AND fence = ? AND lane = ?) AND finished_at IS NULL"
    ),
    "finished": (
        "UPDATE requests SET first_output_at = COALESCE(first_output_at, ?), finished_at = ?, output_tokens = ?,"
        " finish_reason = ?, error = ?, preemptions = ?, queue_ms = ?, prefill_ms = ?, decode_ms = ?, publish_ms = ?"
        " WHERE run_id = ? AND request_id = ?"
    ),
}
UPDATES = tuple(_UPDATES)
"""The updates in the order in which a transaction applies them, after all of its inserts."""

INSERTS = (
    tables.engine_runs,
    tables.policy_applications,
    tables.requests,
    tables.plans,
    tables.plan_lanes,
    tables.plan_alternatives,
    tables.decision_log,
)
_GROUP = (*tables.SHAPE_COLUMNS, "reason")
_MINUTE_KEY = tuple(column.name for column in tables.plan_minutes.primary_key)
_MINUTE_LARGEST = "device_ms_max"
_FENCES_AT_ONCE = 500
_COPIED = frozenset({"plans", "plan_lanes", "plan_alternatives"})


class Statements:
    """Executes the recorder's statements on one dialect; PostgreSQL gets its inserts of plans by COPY."""

    def __init__(self, dialect: sa.Dialect) -> None:
        self._postgresql = dialect.name == "postgresql"
        mark = "%s" if self._postgresql else "?"
        quote = dialect.identifier_preparer.quote
        self._columns = {table.name: ", ".join(quote(column.name) for column in table.columns) for table in INSERTS}
        self._inserts = {
            table.name: f"INSERT INTO {table.name} ({self._columns[table.name]})"
            f" VALUES ({', '.join([mark] * len(table.columns))})"
            for table in INSERTS
        }
        self._updates = {name: text.replace("?", mark) for name, text in _UPDATES.items()}
        self._mark = mark
        self._add_minutes = _minutes_text(mark)

    def insert(self, connection: sa.Connection, table: str, rows: Sequence[Row]) -> None:
        """Insert rows that hold every column of the table, in its order."""
        if self._postgresql and table in _COPIED:
            driver: Any = connection.connection.driver_connection
            with driver.cursor() as cursor, cursor.copy(f"COPY {table} ({self._columns[table]}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            return
        connection.exec_driver_sql(self._inserts[table], [tuple(row) for row in rows])

    def update(self, connection: sa.Connection, name: str, rows: Sequence[Row]) -> None:
        """Apply one of UPDATES to each row of values."""
        connection.exec_driver_sql(self._updates[name], [tuple(row) for row in rows])

    def running_plans(self, connection: sa.Connection, run_id: str, fences: Sequence[int]) -> list[Row]:
        """Fence, shape and reason, and selected_cost_ms of those of the plans that the store has and has no end of."""
        found: list[Row] = []
        for start in range(0, len(fences), _FENCES_AT_ONCE):
            some = fences[start : start + _FENCES_AT_ONCE]
            text = (
                f"SELECT fence, {', '.join(_GROUP)}, selected_cost_ms FROM plans WHERE run_id = {self._mark}"
                f" AND fence IN ({', '.join([self._mark] * len(some))}) AND completed_at IS NULL"
            )
            found.extend(tuple(row) for row in connection.exec_driver_sql(text, (run_id, *some)))
        return found

    def add_minutes(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        """Add rows of plan_minutes to those that are there."""
        connection.exec_driver_sql(self._add_minutes, [tuple(row) for row in rows])


def _minutes_text(mark: str) -> str:
    names = [column.name for column in tables.plan_minutes.columns]
    changes = [
        f"{name} = CASE WHEN excluded.{name} > plan_minutes.{name} THEN excluded.{name} ELSE plan_minutes.{name} END"
        if name == _MINUTE_LARGEST
        else f"{name} = plan_minutes.{name} + excluded.{name}"
        for name in names
        if name not in _MINUTE_KEY
    ]
    return (
        f"INSERT INTO plan_minutes ({', '.join(names)}) VALUES ({', '.join([mark] * len(names))})"
        f" ON CONFLICT ({', '.join(_MINUTE_KEY)}) DO UPDATE SET {', '.join(changes)}"
    )
