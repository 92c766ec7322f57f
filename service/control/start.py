"""The policy that an engine starts with."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from scheduler.policy import PolicyConfig
from service.control.checks import check_coefficients
from service.control.errors import UnreadablePolicy
from service.control.guard_rows import settle_guards
from service.control.versions import PolicyVersion, insert, lock_versions, newest, refuse_pending, version_of
from service.settings import Settings
from service.store.engines import read_transaction, write_transaction

START_COEFFICIENTS: Mapping[str, str] = {
    "scheduler_terminal_value": "terminal_value",
    "scheduler_terminal_age_price": "terminal_age_price",
    "mtp_adaptive_verification_alpha": "adaptive_verification_alpha",
    "scheduler_prompt_wait_price": "prompt_wait_price",
    "scheduler_prompt_rank_age_ms": "prompt_rank_age_ms",
    "scheduler_decode_gap_weight": "decode_gap_weight",
    "scheduler_decode_late_price": "decode_late_price",
    "scheduler_decode_cadence": "decode_cadence",
    "scheduler_token_budget": "token_budget",
    "scheduler_acceptance_model": "acceptance_model",
}
"""The coefficient that each setting sets; beside them `scheduler_policy` names a preset."""
POLICY_FLAGS = ("scheduler_policy", *START_COEFFICIENTS)
"""The settings that set a policy; None where the flag was not given."""


def resolve_initial_policy(engine: sa.Engine, settings: Settings) -> PolicyVersion:
    """The policy to start an engine with, applied in the store before the engine sees it.

    The newest applied version wins; on the first start that is version 1, "balanced" by "default". A flag that
    differs from it makes a new version by "command line". Versions still pending are refused: whatever engine they
    were sent to is gone. For a restart of the engine alone leave the flags None, or they undo later changes.

    Raises InvalidPolicy (flags; nothing is written), UnreadablePolicy, StoreError.
    """
    preset = settings.scheduler_policy
    changes = _changes(settings)
    check_coefficients(preset, changes)
    if preset is None and not changes and (settled := _settled(engine)) is not None:
        return settled
    now = dt.datetime.now(dt.UTC)
    with write_transaction(engine) as connection:
        lock_versions(connection)
        refuse_pending(connection)
        row = newest(connection, "applied")
        if row is None:
            first = insert(
                connection, PolicyConfig.balanced(), state="applied", actor="default", note="", parent=None, now=now
            )
            current: PolicyVersion | None = first
            parent = first.version
        else:
            current = _readable(row, replaced=preset is not None)
            parent = row["version"]
        if preset is not None:
            config = PolicyConfig.preset(preset).merged(changes)
        else:
            assert current is not None, "only a preset stands in for an unreadable version"
            config = current.config.merged(changes)
        if current is not None and current.config == config:
            return current
        made = insert(
            connection, config, state="applied", actor="command line", note=_note(settings), parent=parent, now=now
        )
        settle_guards(connection, made, now)
        return made


def _settled(engine: sa.Engine) -> PolicyVersion | None:
    """The newest applied version where nothing has to be written: an engine need not wait for the store's writers."""
    with read_transaction(engine) as connection:
        row = newest(connection, "applied")
        if row is None or newest(connection, "pending") is not None:
            return None
        return _readable(row, replaced=False)


def _readable(row: sa.RowMapping, *, replaced: bool) -> PolicyVersion | None:
    """The row's version; None when it cannot be read and a preset replaces it anyway."""
    try:
        return version_of(row)
    except UnreadablePolicy:
        if replaced:
            return None
        raise


def _changes(settings: Settings) -> dict[str, Any]:
    given = {coefficient: getattr(settings, flag) for flag, coefficient in START_COEFFICIENTS.items()}
    return {name: value for name, value in given.items() if value is not None}


def _note(settings: Settings) -> str:
    given = ((flag, getattr(settings, flag)) for flag in POLICY_FLAGS)
    return " ".join(f"--{flag.replace('_', '-')} {value}" for flag, value in given if value is not None)
