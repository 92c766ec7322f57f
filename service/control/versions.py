"""Policy versions as rows: what one transaction reads or writes. Synchronous; no engine, no event loop.

A version's number is used once: a refused one keeps its row and its number. States go pending -> applied or
pending -> refused, each written by exactly one `UPDATE … WHERE state = 'pending'`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import sqlalchemy as sa

from scheduler.errors import InvalidPolicy
from scheduler.policy import COEFFICIENTS, PolicyConfig
from service.control.checks import audited, audited_text
from service.control.errors import NoPolicy, UnreadablePolicy
from service.store.tables import policy_attempts, policy_versions

State = Literal["pending", "applied", "refused"]
Outcome = Literal["applied", "unchanged", "invalid", "stale", "pending", "refused", "guarded", "held", "ended"]
MAX_REASON = 2000
MAX_ATTEMPTS = 10_000
_NO_POLICY = "the database holds no policy yet; `helios serve` writes the first one"
_log = logging.getLogger(__name__)
_versions = policy_versions.c


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One version of the policy. `preset` names the preset whose values it has, if any."""

    version: int
    created_at: dt.datetime
    applied_at: dt.datetime | None
    state: State
    actor: str
    note: str
    parent_version: int | None
    preset: str | None
    config: PolicyConfig


def version_of(row: Mapping[Any, Any]) -> PolicyVersion:
    """The version in a `policy_versions` row. Raises UnreadablePolicy."""
    try:
        config = PolicyConfig(**{c.name: row[c.name] for c in COEFFICIENTS})
    except InvalidPolicy as error:
        raise UnreadablePolicy(
            f"policy version {row['version']} in the database cannot be used ({error}). Start with "
            "--scheduler-policy balanced to make a new one"
        ) from error
    names = ("version", "created_at", "applied_at", "state", "actor", "note", "parent_version", "preset")
    return PolicyVersion(**{name: row[name] for name in names}, config=config)


def lock_versions(connection: sa.Connection) -> None:
    """Keeps other writers of policy versions out until the transaction ends; readers go on."""
    if connection.dialect.name == "postgresql":  # SQLite's write transaction excludes them already
        connection.exec_driver_sql("LOCK TABLE policy_versions IN SHARE ROW EXCLUSIVE MODE")


def newest(connection: sa.Connection, state: State) -> sa.RowMapping | None:
    """The row with the highest number in `state`."""
    query = sa.select(policy_versions).where(_versions.state == state).order_by(_versions.version.desc()).limit(1)
    return connection.execute(query).mappings().first()


def newest_applied(connection: sa.Connection) -> PolicyVersion:
    """The version in force. Raises NoPolicy before the first start and UnreadablePolicy."""
    row = newest(connection, "applied")
    if row is None:
        raise NoPolicy(_NO_POLICY)
    return version_of(row)


def newest_number(connection: sa.Connection) -> int | None:
    """The number of the version in force, or None; one look-up, to be asked often."""
    query = sa.select(_versions.version).where(_versions.state == "applied")
    found: int | None = connection.execute(query.order_by(_versions.version.desc()).limit(1)).scalar()
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """The version in force, the highest refused number above it (None: there is none), and since when one waits."""

    current: PolicyVersion
    withdrawn: int | None
    waits_since: dt.datetime | None


def standing(connection: sa.Connection) -> Standing:
    """How the versions stand, in one statement and so at one instant. Raises NoPolicy, UnreadablePolicy."""
    others = policy_versions.alias()

    def highest(state: State, column: sa.Column[Any]) -> sa.Label[Any]:
        query = sa.select(column).where(others.c.state == state, others.c.version > _versions.version)
        return query.order_by(others.c.version.desc()).limit(1).scalar_subquery().label(state)

    query = sa.select(policy_versions, highest("refused", others.c.version), highest("pending", others.c.created_at))
    query = query.where(_versions.state == "applied").order_by(_versions.version.desc()).limit(1)
    row = connection.execute(query).mappings().first()
    if row is None:
        raise NoPolicy(_NO_POLICY)
    return Standing(version_of(row), row["refused"], row["pending"])


def find(connection: sa.Connection, version: int) -> PolicyVersion | None:
    """The version with this number in any state. Raises UnreadablePolicy."""
    row = connection.execute(sa.select(policy_versions).where(_versions.version == version)).mappings().first()
    return None if row is None else version_of(row)


def list_versions(connection: sa.Connection, limit: int) -> list[PolicyVersion]:
    """The newest `limit` versions, newest first, in every state, without those that cannot be read."""
    query = sa.select(policy_versions).order_by(_versions.version.desc()).limit(limit)
    found = []
    for row in connection.execute(query).mappings():
        try:
            found.append(version_of(row))
        except UnreadablePolicy as error:
            _log.warning("left out of the history: %s", error.__cause__)
    return found


def insert(
    connection: sa.Connection,
    config: PolicyConfig,
    *,
    state: State,
    actor: str,
    note: str,
    parent: int | None,
    now: dt.datetime,
) -> PolicyVersion:
    """Writes the next version; the caller holds the write lock."""
    highest = connection.execute(sa.select(sa.func.max(_versions.version))).scalar()
    made = PolicyVersion(
        version=(highest or 0) + 1,
        created_at=now,
        applied_at=now if state == "applied" else None,
        state=state,
        actor=actor,
        note=note,
        parent_version=parent,
        preset=config.preset_name,
        config=config,
    )
    values = {f.name: getattr(made, f.name) for f in dataclasses.fields(made) if f.name != "config"}
    connection.execute(policy_versions.insert().values(**values, **config.as_dict()))
    return made


def settle(connection: sa.Connection, version: int, state: State, now: dt.datetime) -> State:
    """Moves a pending version to `state`; returns the state that it has afterwards."""
    values = {"state": state, "applied_at": now if state == "applied" else None}
    pending = (_versions.version == version, _versions.state == "pending")
    connection.execute(policy_versions.update().where(*pending).values(**values))
    found = connection.execute(sa.select(_versions.state).where(_versions.version == version)).scalar_one()
    return cast(State, found)


def refuse_pending(connection: sa.Connection, before: dt.datetime | None = None) -> None:
    """Refuses every version that still waits, or only those made before a time."""
    query = policy_versions.update().where(_versions.state == "pending")
    if before is not None:
        query = query.where(_versions.created_at < before)
    connection.execute(query.values(state="refused"))


def refuse_withdrawn(connection: sa.Connection, versions: Iterable[int]) -> None:
    """Refuses versions that the engine no longer uses, though the store was not told in time.

    One of them may even be marked applied, when the connection broke during that commit; it is refused only while
    nothing newer builds on it.
    """
    highest = sa.select(sa.func.max(_versions.version)).scalar_subquery()
    for version in versions:
        known = (_versions.version == version, _versions.version == highest)
        values = {"state": "refused", "applied_at": None}
        connection.execute(policy_versions.update().where(*known).values(**values))
        settle(connection, version, "refused", dt.datetime.now(dt.UTC))


def record_attempt(
    connection: sa.Connection,
    outcome: Outcome,
    reason: str,
    request: Mapping[str, Any],
    actor: object,
    now: dt.datetime,
) -> None:
    """Writes one row of the audit and drops those before the newest MAX_ATTEMPTS."""
    made = connection.execute(
        policy_attempts.insert().values(
            at=now,
            actor=audited_text(actor),
            outcome=outcome,
            reason=audited_text(reason, MAX_REASON),
            request=audited(request),
        )
    )
    (number,) = made.inserted_primary_key or (0,)
    connection.execute(policy_attempts.delete().where(policy_attempts.c.id <= number - MAX_ATTEMPTS))
