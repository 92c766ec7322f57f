"""Which policy an engine starts with."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime as dt
import sqlite3

import msgspec
import pytest
import sqlalchemy as sa
from factories import policy_row

from scheduler.errors import InvalidPolicy
from scheduler.policy import PolicyConfig
from service.control.errors import UnreadablePolicy
from service.control.policy import resolve_initial_policy
from service.store.database import read_transaction, write_transaction
from service.store.errors import StoreBusy
from service.store.tables import policy_versions

AT = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


def store_versions(store, *versions):
    with write_transaction(store) as connection:
        connection.execute(policy_versions.insert(), list(versions))


def states(store):
    with read_transaction(store) as connection:
        query = sa.select(policy_versions.c.state).order_by(policy_versions.c.version)
        return list(connection.scalars(query))


@pytest.fixture
def flags(no_flags):
    return lambda **given: msgspec.structs.replace(no_flags, **given)


def test_the_first_start_writes_version_1_balanced_by_default(any_store, no_flags):
    first = resolve_initial_policy(any_store, no_flags)
    assert (first.version, first.actor, first.preset, first.state) == (1, "default", "balanced", "applied")
    assert (first.parent_version, first.config) == (None, PolicyConfig.balanced())
    assert resolve_initial_policy(any_store, no_flags) == first
    assert states(any_store) == ["applied"]


def test_a_restart_that_changes_nothing_does_not_wait_for_the_stores_writers(store, no_flags, flags):
    """Whoever holds SQLite's write lock, a hung recorder perhaps, must not keep an engine from starting."""
    first = resolve_initial_policy(store, no_flags)
    with contextlib.closing(sqlite3.connect(store.url.database, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        assert resolve_initial_policy(store, no_flags) == first
        with contextlib.closing(store.raw_connection()) as connection:
            connection.cursor().execute("PRAGMA busy_timeout=1")
        with pytest.raises(StoreBusy):
            resolve_initial_policy(store, flags(scheduler_terminal_value=7.0))


def test_the_newest_applied_version_wins_and_a_pending_one_is_refused(any_store, no_flags):
    config = PolicyConfig.balanced().merged({"token_fairness": 3})
    store_versions(
        any_store,
        policy_row(1, PolicyConfig.balanced(), AT),
        policy_row(2, config, AT, actor="anna"),
        policy_row(3, config, AT, state="refused", applied_at=None),
        policy_row(4, config, AT, state="pending", applied_at=None),
    )
    found = resolve_initial_policy(any_store, no_flags)
    assert (found.version, found.actor, found.config) == (2, "anna", config)
    assert states(any_store) == ["applied", "applied", "refused", "refused"]


def test_a_flag_that_differs_makes_a_new_version_by_command_line(any_store, flags):
    store_versions(any_store, policy_row(1, PolicyConfig.balanced().merged({"token_fairness": 3}), AT))
    made = resolve_initial_policy(any_store, flags(scheduler_terminal_value=10.0))
    assert (made.version, made.actor, made.parent_version) == (2, "command line", 1)
    assert made.note == "--scheduler-terminal-value 10.0"
    assert (made.config.terminal_value, made.config.token_fairness) == (10.0, 3.0)
    assert resolve_initial_policy(any_store, flags(scheduler_terminal_value=10.0)) == made


def test_a_preset_flag_replaces_everything_before_the_other_flags(any_store, flags):
    store_versions(any_store, policy_row(1, PolicyConfig.balanced().merged({"token_fairness": 3}), AT))
    made = resolve_initial_policy(any_store, flags(scheduler_policy="throughput", scheduler_terminal_age_price=2.0))
    assert made.config == PolicyConfig.throughput().merged({"terminal_age_price": 2.0})


def test_a_budget_and_the_flags_of_every_coefficient_make_a_version_that_says_so(any_store, flags):
    made = resolve_initial_policy(any_store, flags(scheduler_policy="budget:512", scheduler_decode_cadence="on"))
    assert made.config == PolicyConfig(token_budget=512, decode_cadence="on")
    assert made.note == "--scheduler-policy budget:512 --scheduler-decode-cadence on"
    wanted = {"prompt_wait_price": 1.0, "prompt_rank_age_ms": 2.0, "decode_gap_weight": 3.0, "decode_late_price": 4.0}
    again = resolve_initial_policy(
        any_store,
        flags(
            scheduler_policy="balanced",
            scheduler_prompt_wait_price=1.0,
            scheduler_prompt_rank_age_ms=2.0,
            scheduler_decode_gap_weight=3.0,
            scheduler_decode_late_price=4.0,
        ),
    )
    assert again.config == PolicyConfig(**wanted)


def test_a_flag_that_says_what_holds_already_makes_no_version(any_store, flags):
    assert resolve_initial_policy(any_store, flags(scheduler_policy="balanced")).version == 1


def test_the_first_start_with_a_flag_writes_the_default_and_then_the_flag(any_store, flags):
    made = resolve_initial_policy(any_store, flags(scheduler_policy="throughput"))
    assert (made.version, made.parent_version, made.preset) == (2, 1, "throughput")


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_bad_flag_is_named_and_writes_nothing(any_store, flags, bad):
    with pytest.raises(InvalidPolicy, match="terminal_value"):
        resolve_initial_policy(any_store, flags(scheduler_terminal_value=bad))
    assert states(any_store) == []


def test_an_unusable_version_stops_the_start_and_a_preset_flag_gets_past_it(any_store, no_flags, flags):
    store_versions(any_store, policy_row(1, PolicyConfig.balanced(), AT, newcomer_memory="elephant"))
    with pytest.raises(UnreadablePolicy, match="--scheduler-policy balanced"):
        resolve_initial_policy(any_store, no_flags)
    made = resolve_initial_policy(any_store, flags(scheduler_policy="balanced"))
    assert (made.version, made.parent_version) == (2, 1)


def test_starters_that_collide_make_one_first_version(any_store, no_flags):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: resolve_initial_policy(any_store, no_flags), range(8)))
    assert {version.version for version in found} == {1}
    assert states(any_store) == ["applied"]
