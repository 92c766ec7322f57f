"""Rows that tests wrote without a day, put where the recorder would have put them."""

from __future__ import annotations

import sqlalchemy as sa

from service.store.engines import write_transaction
from service.store.partitions import PARTITIONED, UNNAMED_DAY, add_day, has_days

DAY = "CAST(committed_at AT TIME ZONE 'UTC' AS date)"


def sort_into_days(engine: sa.Engine) -> None:
    """Move every row of plans, lanes and runner-ups to the day of its plan's commit; nothing to do on SQLite."""
    if not has_days(engine):
        return
    with write_transaction(engine) as connection:
        days = connection.exec_driver_sql(f"SELECT DISTINCT {DAY} FROM plans WHERE recorded_on = '{UNNAMED_DAY}'")
        for day in days.scalars().all():
            assert add_day(connection, day)
        connection.exec_driver_sql(f"UPDATE plans SET recorded_on = {DAY} WHERE recorded_on = '{UNNAMED_DAY}'")
        for table in PARTITIONED[1:]:
            connection.exec_driver_sql(
                f"UPDATE {table} AS t SET recorded_on = p.recorded_on FROM plans AS p"
                f" WHERE p.run_id = t.run_id AND p.fence = t.fence AND t.recorded_on = '{UNNAMED_DAY}'"
            )
