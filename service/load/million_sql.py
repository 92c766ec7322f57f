"""How `service.load.million` repeats episodes by SQL: the product of temporary tables of episodes and repetitions.

Both databases get the same rows, but for the last digits of floats. All of it is one transaction on one connection, to
which the temporary tables belong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from service.load.episodes import PLANS, Episode, Row
from service.load.million_ledgers import FULL_MS, ledger_columns
from service.store.buckets import DEVICE_BOUNDS_MS, DEVICE_BUCKETS
from service.store.engines import writing_connection
from service.store.partitions import add_day, has_days, utc_day
from service.store.tables import SHAPE_COLUMNS, plan_minutes

MONOTONIC_NS = 1 << 40
"""What the monotonic clock showed at the first plan of a run."""
WAITING = 3
"""Requests that have been in no graph yet."""
LAST_EPISODES = 20
"""At the end of the store every plan has runner-ups; before, one in fifty."""
BEGINS_US = 120
"""From a plan's commit to the begin of its graph."""
_INDEXED = ("plans", "plan_lanes", "requests")


def request_id(block: int, number: int) -> str:
    """The id of a request by its episode and its number in there."""
    return f"chatcmpl-{block:06d}-{number}"


@contextlib.contextmanager
def fast_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction of a store that nobody uses yet: SQLite keeps no log of it, a failure leaves a file to delete."""
    with writing_connection(engine) as connection:
        if engine.dialect.name == "sqlite":
            driver = connection.connection.driver_connection
            assert driver is not None
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-200000", "temp_store=MEMORY"):
                driver.execute(f"PRAGMA {pragma}")
        with connection.begin():
            yield connection


def settle(engine: sa.Engine) -> None:
    """Lets the database learn what its tables hold, and SQLite keep a log again."""
    with writing_connection(engine) as connection:
        if engine.dialect.name == "sqlite":
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.execute("PRAGMA synchronous=NORMAL")
            driver.execute("PRAGMA journal_mode=WAL")
            return
        with connection.begin():
            connection.exec_driver_sql("ANALYZE")


def write(connection: sa.Connection, blocks: Sequence[Row], episodes: Sequence[Episode]) -> None:
    """Fill requests, plans, plan_lanes and plan_alternatives."""
    indexes = _drop_indexes(connection)
    _add_days(connection, blocks)
    _temporary(connection, "m_blocks", ("number",), blocks)
    for name, keys, rows in (
        ("m_plans", ("template", "step"), [e.plans for e in episodes]),
        ("m_lanes", ("template", "step", "lane"), [e.lanes for e in episodes]),
        ("m_alternatives", ("template", "step", "rank"), [e.alternatives for e in episodes]),
        ("m_requests", ("template", "request_no"), [e.requests for e in episodes]),
    ):
        merged = [{"template": template, **row} for template, own in enumerate(rows) for row in own]
        _temporary(connection, name, keys, merged)
    sql = _Sql(connection.dialect.name)
    newest = f" AND ((b.fence0 + t.step) % 50 = 0 OR b.number >= {len(blocks) - LAST_EPISODES})"
    for table, source, columns, order_by, more in (
        ("requests", "m_requests", sql.request_columns(), "t.request_no", ""),
        ("plans", "m_plans", sql.plan_columns(), "t.step", ""),
        ("plan_lanes", "m_lanes", sql.lane_columns(), "t.step, t.lane", ""),
        ("plan_alternatives", "m_alternatives", sql.alternative_columns(), "t.step, t.rank", newest),
    ):
        # Both tables are read in the order of their keys, so rows arrive in the order of time.
        order = f" ORDER BY b.number, {order_by}" if connection.dialect.name == "postgresql" else ""
        _run(
            connection,
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(columns.values())}"
            f" FROM m_blocks AS b CROSS JOIN {source} AS t WHERE t.template = b.template{more}{order}",
        )
    _discover(connection)
    for index in indexes:
        connection.exec_driver_sql(index)


def _run(connection: sa.Connection, sql: str) -> None:
    """A statement as it stands: no parameters, so that a percent sign is one."""
    connection.exec_driver_sql(sql, execution_options={"no_parameters": True})


def _drop_indexes(connection: sa.Connection) -> list[str]:
    """SQLite: drops the indexes that people made, and returns how to make them again; sorting once is faster."""
    if connection.dialect.name != "sqlite":
        return []
    tables = ", ".join(f"'{table}'" for table in _INDEXED)
    found = connection.exec_driver_sql(
        f"SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND tbl_name IN ({tables})"
    ).all()
    for name, _ in found:
        connection.exec_driver_sql(f'DROP INDEX "{name}"')
    return [sql for _, sql in found]


def _add_days(connection: sa.Connection, blocks: Sequence[Row]) -> None:
    if not has_days(connection):
        return
    micro = sa.text("SELECT CAST(timestamptz 'epoch' + :us * interval '1 microsecond' AS timestamptz)")
    ends = [connection.execute(micro, {"us": blocks[at]["start_us"]}).scalar_one() for at in (0, -1)]
    for ordinal in range(utc_day(ends[0]).toordinal(), utc_day(ends[1]).toordinal() + 2):
        add_day(connection, type(utc_day(ends[0])).fromordinal(ordinal))


def _temporary(connection: sa.Connection, name: str, keys: tuple[str, ...], rows: Sequence[Row]) -> None:
    """A temporary table of these rows. A value that is missing in the first row must be a float or a text in others."""
    types: dict[type, type[sa.types.TypeEngine[Any]]] = {bool: sa.Boolean, int: sa.BigInteger, float: sa.Float}
    samples = {key: next((row[key] for row in rows if row[key] is not None), None) for key in rows[0]}
    columns = [
        sa.Column(key, types.get(type(sample), sa.Text), primary_key=key in keys, autoincrement=False)
        for key, sample in samples.items()
    ]
    columns.sort(key=lambda column: keys.index(column.name) if column.name in keys else len(keys))
    table = sa.Table(name, sa.MetaData(), *columns, prefixes=["TEMPORARY"])
    table.create(connection)
    connection.execute(table.insert(), list(rows))


class _Sql:
    """Expressions over `b`, a repetition, and `t`, a row of its episode; times are whole microseconds since 1970."""

    def __init__(self, dialect: str) -> None:
        self.postgresql = dialect == "postgresql"

    def whole(self, expression: str) -> str:
        """Without its fraction, as both databases cut it."""
        return f"CAST(floor({expression}) AS bigint)" if self.postgresql else f"CAST({expression} AS bigint)"

    def at(self, offset: str, step: str = "t.step", *, inclusive: bool = False) -> str:
        """When `offset` of the episode was; later than the outlier, or at its end with `inclusive`, that much later."""
        later = f"CASE WHEN {step} {'>=' if inclusive else '>'} b.outlier_step THEN b.outlier_us ELSE 0 END"
        return f"(b.start_us + {self.whole(f'{offset} * b.pace')} + {later})"

    def time(self, us: str) -> str:
        """As a column `_at` holds it."""
        if self.postgresql:
            return f"(timestamptz 'epoch' + {us} * interval '1 microsecond')"
        return f"(strftime('%Y-%m-%d %H:%M:%S', {us} / 1000000, 'unixepoch') || printf('.%06d', {us} % 1000000))"

    def day(self, us: str) -> dict[str, str]:
        """The column of the day, where there is one."""
        return {"recorded_on": f"CAST({self.time(us)} AT TIME ZONE 'UTC' AS date)"} if self.postgresql else {}

    def monotonic(self, us: str) -> str:
        """As a column `_ns` holds it."""
        return f"({MONOTONIC_NS} + ({us} - b.run_us) * 1000)"

    def request(self, number: str) -> str:
        """The id that request_id gives."""
        padded = "lpad(CAST(b.number AS text), 6, '0')" if self.postgresql else "printf('%06d', b.number)"
        return f"'chatcmpl-' || {padded} || '-' || {number}"

    def plan_columns(self) -> dict[str, str]:
        """Of `plans`."""
        committed = self.at("t.offset_us")
        outlier = "CASE WHEN t.step = b.outlier_step THEN b.outlier_us / 1000.0 ELSE 0 END"
        noise = "(0.93 + 0.14 * ((b.number * 7919 + t.step * 104729) % 997) / 997.0)"
        device = f"(t.cost_ms * b.pace * {noise} + {outlier})"
        completed = f"({committed} + {BEGINS_US} + {self.whole(f'1000 * {device}')})"
        cost = "(t.cost_ms * b.cost)"
        own = (
            *SHAPE_COLUMNS, "reason", "token_value", "delivery_value", "wait_cost", "active_rows", "active_decoders",
            "logical_rows", "observation_age_ms", "margin", "candidates", "plan_us", "prompt_tokens", "output_tokens",
            "offered_tokens", "draft_tokens", "accepted_tokens", "deliveries",
        )  # fmt: skip
        return {
            "run_id": "b.run_id",
            "fence": "b.fence0 + t.step",
            "committed_at": self.time(committed),
            "committed_ns": self.monotonic(committed),
            **{name: f"t.{name}" for name in own},
            "score_kind": "'rate'",
            "value_rate": f"t.work / {cost} - t.wait_cost",
            "log_scale": "0",
            "age_relief": "0",
            "terminal_relief": "0",
            "prompt_wait_relief": "0",
            "decode_late_relief": "0",
            "score_horizon_ms": cost,
            "selected_cost_ms": cost,
            "cost_state": "CASE WHEN t.reason = 'timing_refresh' THEN 'stale' ELSE 'fresh' END",
            "exploration_credit_ms": f"CASE WHEN t.reason <> 'ordinary' THEN {FULL_MS} ELSE 0 END",
            **ledger_columns("LEAST" if self.postgresql else "MIN"),
            "discovery_ms": "612.5",
            "queue_depth": "t.step % 2",
            "frame_slot": "t.step % 2",
            "policy_version": "b.policy_version",
            "started_ns": self.monotonic(f"({committed} + {BEGINS_US})"),
            "completed_at": self.time(completed),
            "completed_ns": self.monotonic(completed),
            "outcome": "'completed'",
            "device_ms": device,
            "wall_ms": f"{device} + 0.1",
            "exposed_delivery_ms": "0",
            **self.day(committed),
        }

    def lane_columns(self) -> dict[str, str]:
        """Of `plan_lanes`."""
        own = (
            "lane", "role", "prompt_tokens", "query_length", "ceiling", "proposal_source", "token_price",
            "delivery_price", "age_ms", "sigma_ms", "expected_tokens", "lane_value", "offered_tokens",
            "committed_tokens", "accepted_tokens", "delivered",
        )  # fmt: skip
        published = self.at("t.published_us", inclusive=True)
        return {
            "run_id": "b.run_id",
            "fence": "b.fence0 + t.step",
            "request_id": self.request("t.request_no"),
            "generation": "1 + b.number / 16",
            "terminal_value": "0",
            **{name: f"t.{name}" for name in own},
            "published_ns": f"CASE WHEN t.published_us IS NULL THEN NULL ELSE {self.monotonic(published)} END",
            **self.day(self.at("t.offset_us")),
        }

    def alternative_columns(self) -> dict[str, str]:
        """Of `plan_alternatives`."""
        own = ("rank", *SHAPE_COLUMNS, "token_value", "delivery_value", "wait_cost", "active_rows", "barred_by")
        ids = f"'[\"' || {self.request('t.request_no')} || '\"]'"
        return {
            "run_id": "b.run_id",
            "fence": "b.fence0 + t.step",
            **{name: f"t.{name}" for name in own},
            "score_kind": "'rate'",
            "value_rate": "t.work / (t.cost_ms * b.cost) - t.wait_cost",
            "log_scale": "0",
            "age_relief": "0",
            "terminal_relief": "0",
            "prompt_wait_relief": "0",
            "decode_late_relief": "0",
            "score_horizon_ms": "t.cost_ms * b.cost",
            "selected_cost_ms": "t.cost_ms * b.cost",
            "cost_state": "'fresh'",
            "request_ids": f"CAST({ids} AS jsonb)" if self.postgresql else ids,
            **self.day(self.at("t.offset_us")),
        }

    def request_columns(self) -> dict[str, str]:
        """Of `requests`: all of them ended."""
        arrived = f"(b.start_us + {self.whole('t.arrived_us * b.pace')} - b.wait_us)"
        committed = self.at("t.first_commit_us", "t.first_step")
        first = self.at("t.first_output_us", "t.first_output_step", inclusive=True)
        last = self.at("t.last_output_us", "t.last_step", inclusive=True)
        ended = "b.finish <> '' AND t.request_no = 2"
        hexadecimal = "lpad(to_hex({}), 32, '0')" if self.postgresql else "printf('%032x', {})"
        own = ("prompt_tokens", "cached_tokens", "output_tokens", "max_tokens", "tokenize_ms")
        return {
            "run_id": "b.run_id",
            "request_id": self.request("t.request_no"),
            "model": "'smollm2-135m-instruct'",
            "arrived_at": self.time(arrived),
            "admitted_at": self.time(f"{'GREATEST' if self.postgresql else 'MAX'}({arrived}, {committed} - 150)"),
            "first_output_at": self.time(first),
            "finished_at": self.time(f"({last} + 50)"),
            **{name: f"t.{name}" for name in own},
            "finish_reason": f"CASE WHEN {ended} THEN b.finish ELSE t.finish_reason END",
            "error": f"CASE WHEN {ended} AND b.finish = 'error' THEN 'no KV pages' END",
            "preemptions": "CASE WHEN b.number % 61 = 5 AND t.request_no = 1 THEN 1 ELSE 0 END",
            "queue_ms": f"({committed} - {arrived}) / 1000.0",
            "prefill_ms": f"({first} - {committed}) / 1000.0",
            "decode_ms": f"({last} - {first}) / 1000.0",
            "publish_ms": "0.05",
            "trace_id": hexadecimal.format("b.number * 4 + t.request_no + 1"),
        }


_UNTIL_KNOWN = f"""
UPDATE plans SET reason = 'discovery', cost_state = 'unknown', selected_cost_ms = 0, observation_age_ms = NULL,
    score_kind = 'work', score_horizon_ms = NULL, value_rate = token_value + delivery_value, margin = NULL
WHERE fence <= {16 * PLANS} AND (run_id, fence) IN (
    SELECT run_id, MIN(fence) FROM plans WHERE fence <= {16 * PLANS}
    GROUP BY run_id, {", ".join(SHAPE_COLUMNS)})
"""


def _discover(connection: sa.Connection) -> None:
    """The first plan of each graph in each run was made without knowing how long it takes."""
    connection.exec_driver_sql(_UNTIL_KNOWN)


def end_runs(connection: sa.Connection, blocks: Sequence[Row]) -> None:
    """The first run was killed during its last plan; the second one's is in flight, and three requests wait."""
    second = next(block for block in blocks if block["run"])
    for block, outcome in ((blocks[second["number"] - 1], "lost"), (blocks[-1], "in_flight")):
        key = {"run": block["run_id"], "fence": block["fence0"] + PLANS}
        _cut_off(connection, key, outcome)
    _add_waiting(connection, blocks[-1])


def _cut_off(connection: sa.Connection, key: Mapping[str, Any], outcome: str) -> None:
    where = "WHERE run_id = :run AND fence = :fence"
    served = f"SELECT request_id FROM plan_lanes {where}"
    made = f"(SELECT SUM(committed_tokens) FROM plan_lanes AS l {where} AND l.request_id = requests.request_id)"
    open_ = "finished_at = NULL, finish_reason = NULL, queue_ms = NULL, prefill_ms = NULL, decode_ms = NULL"
    ended = "finish_reason = 'error', error = 'the engine ended'"
    for statement in (
        f"UPDATE requests SET output_tokens = output_tokens - {made}, publish_ms = NULL,"
        f" {ended if outcome == 'lost' else open_} WHERE run_id = :run AND request_id IN ({served})",
        f"UPDATE plan_lanes SET committed_tokens = 0, accepted_tokens = 0, delivered = {_false(connection)},"
        f" published_ns = NULL {where}",
        f"UPDATE plans SET outcome = '{outcome}', started_ns = NULL, completed_at = NULL, completed_ns = NULL,"
        " device_ms = NULL, wall_ms = NULL, exposed_delivery_ms = NULL, output_tokens = 0, accepted_tokens = 0,"
        f" deliveries = 0 {where}",
    ):
        connection.execute(sa.text(statement), dict(key))


def _false(connection: sa.Connection) -> str:
    return "false" if connection.dialect.name == "postgresql" else "0"


def _add_waiting(connection: sa.Connection, block: Row) -> None:
    """Requests that came in the last eight seconds and have been in no graph."""
    sql = _Sql(connection.dialect.name)
    ends = f"(b.start_us + {sql.whole('x.offset_us * b.pace')})"
    for number, ago_us in enumerate((8_400_000, 2_900_000, 300_000)):
        arrived = sql.time(f"({ends} - {ago_us})")
        _run(
            connection,
            "INSERT INTO requests (run_id, request_id, model, arrived_at, prompt_tokens, max_tokens, tokenize_ms)"
            f" SELECT b.run_id, '{request_id(block['number'] + 1, number)}', 'smollm2-135m-instruct', {arrived},"
            f" {180 + 240 * number}, 256, 0.3 FROM m_blocks AS b JOIN m_plans AS x ON x.template = b.template"
            f" WHERE b.number = {block['number']} AND x.step = {PLANS}",
        )


def write_minutes(connection: sa.Connection) -> None:
    """The roll-up of every completed plan, as the recorder makes it."""
    minute = (
        "date_trunc('minute', completed_at, 'UTC')"
        if connection.dialect.name == "postgresql"
        else "substr(completed_at, 1, 16) || ':00.000000'"
    )
    bucket = " ".join(f"WHEN device_ms <= {bound} THEN {at}" for at, bound in enumerate(DEVICE_BOUNDS_MS))
    keys = ("run_id", *SHAPE_COLUMNS, "reason")
    columns = ("minute", *keys, *(c.name for c in plan_minutes.columns if c.name not in ("minute", *keys)))
    sums = {
        "plans": "SUM(n)",
        "device_ms_sum": "SUM(device)",
        "device_ms_max": "MAX(longest)",
        "selected_cost_ms_sum": "SUM(cost)",
        "output_tokens": "SUM(tokens)",
        **{name: f"COALESCE(SUM(CASE WHEN bucket = {at} THEN n END), 0)" for at, name in enumerate(DEVICE_BUCKETS)},
    }
    grouped = ", ".join(("minute", *keys))
    _run(
        connection,
        f"INSERT INTO plan_minutes ({', '.join(columns)})"
        f" SELECT {', '.join(sums.get(name, name) for name in columns)} FROM ("
        f"  SELECT {minute} AS minute, {', '.join(keys)}, CASE {bucket} ELSE {len(DEVICE_BOUNDS_MS)} END AS bucket,"
        "   COUNT(*) AS n, SUM(device_ms) AS device, MAX(device_ms) AS longest, SUM(selected_cost_ms) AS cost,"
        "   SUM(output_tokens) AS tokens"
        f"  FROM plans WHERE outcome = 'completed' GROUP BY 1, {', '.join(keys)}, bucket) AS found"
        f" GROUP BY {grouped} ORDER BY {grouped}",
    )
