"""A store of a million plans, made in seconds: for measurements and tests of what people look at.

    made = fill_store(url, now)

Episodes of believable traffic (service.load.episodes) are repeated by the database itself, each time with another
pace and other noise: two runs over 26 hours, the second one still running, three policy versions, a plan of 5 s, a lost
tail with its trace gap, requests that wait, and the roll-up `plan_minutes` made from the very plans. The store ends at
`now`. What can be derived fits together: lanes with their plans, requests with their lanes, ledgers with their probes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import random

import sqlalchemy as sa

from scheduler.policy import PolicyConfig
from service.load import million_sql
from service.load.episodes import PLANS, STYLES, Row, episode
from service.load.million_ledgers import Ledgers, charge
from service.store.database import open_database, upgrade
from service.store.tables import engine_runs, policy_applications, policy_attempts, policy_versions, trace_gaps

MILLION = 1_000_000
EPISODE_S = 9.36
"""A million plans are 26 hours."""
DOWN_S = 180.0
"""Between the two runs."""
FIRST_RUN = 0.4
OUTLIER_MS = 5000.0
OUTLIER_STEP = 97
MODEL = "smollm2-135m-instruct"
_MICROSECOND = dt.timedelta(microseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """What was written. `outlier`: run and fence of the one plan of OUTLIER_MS; `newest`: of the plan in flight."""

    run_ids: tuple[str, str]
    plans: int
    requests: int
    outlier: tuple[str, int]
    newest: tuple[str, int]
    slow_request: tuple[str, str]
    first_at: dt.datetime
    last_at: dt.datetime


def fill_store(url: str, now: dt.datetime, plans: int = MILLION) -> Made:
    """Makes the store at `url` if there is none and fills it; it must hold nothing yet.

    `plans` is rounded to whole episodes of 100, at least twenty of them; fewer plans are a shorter time. Raises
    StoreError where the store cannot be made, and the driver's errors while it is filled.
    """
    upgrade(url)
    count = max(20, round(plans / PLANS))
    blocks = _blocks(count, _microseconds(now))
    engine = open_database(url)
    try:
        with million_sql.fast_transaction(engine) as connection:
            million_sql.write(connection, blocks, [episode(style, number) for number, style in enumerate(STYLES)])
            _write_runs(connection, blocks)
            million_sql.end_runs(connection, blocks)
            million_sql.write_minutes(connection)
        million_sql.settle(engine)
    finally:
        engine.dispose()
    return _made(blocks)


def _microseconds(at: dt.datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def _time(us: int) -> dt.datetime:
    return _EPOCH + us * _MICROSECOND


def _blocks(count: int, now_us: int) -> list[Row]:
    """One row for each episode, oldest first; `start_us` since 1970, `fence0` the fence before its first plan."""
    random_ = random.Random(1)
    early = round(count * FIRST_RUN)
    outlier = round(count * 0.75)
    # The newest episode ends a moment ago, with its last plan in flight.
    begun_us = now_us - round(count * EPISODE_S * 1e6) - round(DOWN_S * 1e6)
    blocks: list[Row] = []
    for number in range(count):
        second = number >= early
        if number in (0, early):
            ledgers = Ledgers()
        pace = 1.0 if number == outlier else _pace(number, count, random_)
        style = 0 if number == outlier else number % len(STYLES)
        start_us = begun_us + round((number * EPISODE_S + DOWN_S * second) * 1e6)
        run_us = begun_us + round((early * EPISODE_S + DOWN_S) * 1e6) if second else begun_us
        blocks.append(
            {
                "number": number,
                "run": int(second),
                "run_id": _run_id(run_us),
                "run_us": run_us,
                "template": style,
                "fence0": PLANS * (number - early * second),
                "start_us": start_us,
                "pace": pace,
                "cost": pace * (1 + 0.06 * math.sin(number / 37) + random_.uniform(-0.03, 0.03)),
                "policy_version": 1 if number < count * 0.25 else 2 if number < count * 0.7 else 3,
                "outlier_step": OUTLIER_STEP if number == outlier else PLANS + 1,
                "outlier_us": round(OUTLIER_MS * 1000) if number == outlier else 0,
                "wait_us": random_.randrange(400_000, 4_000_000) if number % 97 == 0 else 0,
                "finish": "abort" if number % 211 == 7 else "error" if number % 457 == 11 else "",
                **charge(ledgers, STYLES[style].probe, pace),
            }
        )
    _end_now(blocks[-1], now_us)
    return blocks


def _run_id(started_us: int) -> str:
    return f"{_time(started_us):%Y%m%dT%H%M%S}-{started_us % 2**32:08x}"


def _pace(number: int, count: int, random_: random.Random) -> float:
    """Slower at the busy time of day; the longest episode then takes 9 s of its 9.36."""
    day = 0.5 - 0.5 * math.cos(2 * math.pi * (number / count * 26) / 24)
    return 0.9 + 0.9 * day + random_.uniform(0.0, 0.4)


def _end_now(block: Row, now_us: int) -> None:
    """Moves the newest episode so that its last plan was committed a fifth of a second ago."""
    last = episode(STYLES[block["template"]], block["template"]).plans[-1]
    block["start_us"] = now_us - 200_000 - round(last["offset_us"] * block["pace"])


def _write_runs(connection: sa.Connection, blocks: list[Row]) -> None:
    first, second = blocks[0], next(block for block in blocks if block["run"])
    last_of_first = blocks[second["number"] - 1]
    ended = _time(last_of_first["start_us"] + round(EPISODE_S * 1e6))
    connection.execute(
        engine_runs.insert(),
        [_run_row(first, {"ended_at": ended, "end_reason": "failed: killed by signal 9"}), _run_row(second, {})],
    )
    changes = {block["policy_version"]: block for block in reversed(blocks)}
    config = PolicyConfig.balanced()
    versions: dict[int, tuple[PolicyConfig, Row]] = {
        1: (config, {"preset": "balanced", "actor": "default", "note": "", "parent_version": None}),
        2: (config.merged({"decode_age_price": 0.4}), {"actor": "anna", "note": "shorter gaps", "parent_version": 1}),
        3: (config.merged({"delivery_fairness": 9.0}), {"actor": "bob", "note": "steadier", "parent_version": 2}),
    }
    for version, (coefficients, words) in versions.items():
        at = _time(changes[version]["start_us"] - 1000)
        values = {"version": version, "created_at": at, "applied_at": at, "state": "applied", "preset": None}
        connection.execute(policy_versions.insert(), {**values, **words, **coefficients.as_dict()})
        _write_application(connection, version, changes[version], at)
    _write_application(connection, 2, second, _time(second["start_us"] - 1000))
    connection.execute(
        policy_attempts.insert(),
        [
            {"at": _time(changes[2]["start_us"]), "actor": "anna", "outcome": "applied", "reason": "", "request": {}},
            {
                "at": _time(changes[3]["start_us"] - 60_000_000), "actor": "carl", "outcome": "stale",
                "reason": "version 2 is newer", "request": {},
            },
            {"at": _time(changes[3]["start_us"]), "actor": "bob", "outcome": "applied", "reason": "", "request": {}},
        ],
    )  # fmt: skip
    lost = last_of_first["fence0"] + PLANS + 1
    gap = {"run_id": first["run_id"], "from_fence": lost, "to_fence": lost + 2, "reason": "missing tail"}
    connection.execute(trace_gaps.insert(), {**gap, "noticed_at": _time(second["start_us"])})


def _write_application(connection: sa.Connection, version: int, block: Row, at: dt.datetime) -> None:
    values = {"version": version, "run_id": block["run_id"], "fence": block["fence0"], "applied_at": at}
    connection.execute(policy_applications.insert(), values)


def _run_row(block: Row, end: Row) -> Row:
    started_us = block["start_us"] - 1_000_000
    return {
        "run_id": block["run_id"],
        "started_at": _time(started_us),
        "ended_at": None,
        "end_reason": None,
        "host": "gpu-host-1",
        "version": "0.1.0",
        "model": MODEL,
        "device": "simulated",
        "catalog_digest": "0" * 16,
        "settings": {"port": 8000, "dtype": "float32", "draft_tokens": 5},
        "started_wall_ns": started_us * 1000,
        "started_monotonic_ns": million_sql.MONOTONIC_NS - 1_000_000_000,
        **end,
    }


def _made(blocks: list[Row]) -> Made:
    outlier = next(block for block in blocks if block["outlier_us"])
    last = blocks[-1]
    slow = max(blocks, key=lambda block: int(block["wait_us"]))
    return Made(
        run_ids=(blocks[0]["run_id"], last["run_id"]),
        plans=PLANS * len(blocks),
        requests=4 * len(blocks) + million_sql.WAITING,
        outlier=(outlier["run_id"], outlier["fence0"] + OUTLIER_STEP),
        newest=(last["run_id"], last["fence0"] + PLANS),
        slow_request=(slow["run_id"], million_sql.request_id(slow["number"], 0)),
        first_at=_time(blocks[0]["start_us"]),
        last_at=_time(last["start_us"] + round(EPISODE_S * 1e6)),
    )
