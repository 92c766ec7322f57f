"""Guards as rows of policy_guards: what one transaction reads or writes. Synchronous; no engine, no event loop.

A guard leaves `watching` by exactly one `UPDATE … WHERE state = 'watching'`. One watcher at a time holds the lease; it
keeps two from doing the same work, and the update alone keeps two from deciding.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from service.control.checks import audited_text
from service.control.guard_terms import (
    Decision,
    Evidence,
    Guard,
    GuardState,
    GuardTerms,
    evidence_from,
    limits_from,
)
from service.control.versions import MAX_REASON, PolicyVersion
from service.store.tables import policy_guards

_guards = policy_guards.c


def watching_guard(connection: sa.Connection) -> Guard | None:
    """The one that watches."""
    row = connection.execute(sa.select(policy_guards).where(_guards.state == "watching")).mappings().first()
    return None if row is None else guard_of(row)


def list_guards(connection: sa.Connection, limit: int) -> list[Guard]:
    """The newest `limit`, newest first."""
    query = sa.select(policy_guards).order_by(_guards.version.desc()).limit(limit)
    return [guard_of(row) for row in connection.execute(query).mappings()]


def find_guard(connection: sa.Connection, version: int) -> Guard | None:
    """The guard of this version."""
    row = connection.execute(sa.select(policy_guards).where(_guards.version == version)).mappings().first()
    return None if row is None else guard_of(row)


def guard_of(row: Mapping[Any, Any]) -> Guard:
    """The guard in a row."""
    return Guard(
        version=row["version"],
        parent=row["parent_version"],
        minutes=row["minutes"],
        limits=limits_from(row["limits"]),
        actor=row["actor"],
        state=row["state"],
        opened_at=row["opened_at"],
        until=row["ends_at"],
        decided_at=row["decided_at"],
        reason=row["reason"],
        evidence=evidence_from(row["evidence"]),
    )


def settle_guards(
    connection: sa.Connection,
    made: PolicyVersion,
    now: dt.datetime,
    *,
    terms: GuardTerms | None = None,
    decision: Decision | None = None,
) -> None:
    """What a version that comes into force means for guards: closes the one of an older version, opens its own.

    The caller holds the write lock and has marked `made` applied. Called again for the same version, changes nothing.
    """
    watching = watching_guard(connection)
    if watching is not None and watching.version < made.version:
        if decision is not None:
            close_guard(connection, watching.version, "rolled_back", decision.reason, now, decision.evidence)
        else:
            close_guard(
                connection, watching.version, "ended", f"version {made.version} by {made.actor} replaced it", now
            )
    if terms is not None and find_guard(connection, made.version) is None:
        assert made.parent_version is not None, "only the first version has no parent, and it is nobody's change"
        connection.execute(
            policy_guards.insert().values(
                version=made.version,
                parent_version=made.parent_version,
                minutes=terms.minutes,
                limits=terms.limits.as_dict(),
                actor=made.actor,
                state="watching",
                opened_at=now,
                ends_at=now + dt.timedelta(minutes=terms.minutes),
                reason="",
                evidence=terms.evidence.as_dict(),
            )
        )


def close_guard(
    connection: sa.Connection,
    version: int,
    state: GuardState,
    reason: str,
    now: dt.datetime,
    evidence: Evidence | None = None,
) -> bool:
    """Whether this call closed it. One that is decided against, but not yet rolled back, cannot hold."""
    values: dict[str, Any] = {"state": state, "reason": audited_text(reason, MAX_REASON), "decided_at": now}
    values |= {"watcher": None, "lease_ends_at": None}
    if evidence is not None:
        values["evidence"] = evidence.as_dict()
    open_one = [_guards.version == version, _guards.state == "watching"]
    if state == "held":
        open_one.append(_guards.reason == "")
    return bool(connection.execute(policy_guards.update().where(*open_one).values(**values)).rowcount)


def take_lease(connection: sa.Connection, version: int, watcher: str, now: dt.datetime, lease: dt.timedelta) -> bool:
    """Whether `watcher` watches for the next `lease`: it did already, or nobody does.

    A lease that ends later than any could is of a clock that was ahead, and counts as none.
    """
    free = sa.or_(
        _guards.watcher.is_(None),
        _guards.watcher == watcher,
        _guards.lease_ends_at <= now,
        _guards.lease_ends_at > now + 2 * lease,
    )
    taken = policy_guards.update().where(_guards.version == version, _guards.state == "watching", free)
    return bool(connection.execute(taken.values(watcher=watcher, lease_ends_at=now + lease)).rowcount)


def keep_evidence(connection: sa.Connection, version: int, watcher: str, evidence: Evidence, reason: str = "") -> bool:
    """Writes what was found while it watches; with a `reason` that is the decision, which is still to be carried out.

    Whether this watcher still had the lease.
    """
    mine = (_guards.version == version, _guards.state == "watching", _guards.watcher == watcher)
    values = {"evidence": evidence.as_dict(), "reason": audited_text(reason, MAX_REASON)}
    return bool(connection.execute(policy_guards.update().where(*mine).values(**values)).rowcount)


def with_problem(evidence: Evidence, problem: str) -> Evidence:
    """The evidence with one more problem, once."""
    known = evidence.problems if problem in evidence.problems else (*evidence.problems, problem)
    return dataclasses.replace(evidence, problems=known)
