"""Changing the policy when nothing goes wrong, and when the caller does."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt

import pytest
import sqlalchemy as sa

from scheduler.errors import InvalidPolicy
from scheduler.policy import PolicyConfig
from service.control import versions
from service.control.errors import (
    ChangeInProgress,
    InvalidChange,
    NoPolicy,
    StalePolicy,
    UnknownVersion,
    UnreadablePolicy,
)
from service.control.policy import PolicyControl
from service.store.database import read_transaction, write_transaction
from service.store.tables import policy_attempts, policy_versions


def run(coroutine):
    return asyncio.run(coroutine)


def rows(store, table):
    with read_transaction(store) as connection:
        key = table.c.get("version", table.c.get("id"))
        return [dict(row) for row in connection.execute(sa.select(table).order_by(key)).mappings()]


def change(control, **given):
    return control.change(**{"expected_version": 1, "actor": "anna", **given})


def test_a_change_is_in_force_with_who_when_and_why_once_the_engine_has_it(control, fake_engine, started_store):
    async def story():
        before = dt.datetime.now(dt.UTC)
        made = await change(control, coefficients={"token_fairness": 8}, note=" calmer ")
        assert before <= made.created_at <= made.applied_at <= dt.datetime.now(dt.UTC)
        assert (made.version, made.state, made.actor, made.note) == (2, "applied", "anna", "calmer")
        assert (made.parent_version, made.preset) == (1, None)
        assert made.config == PolicyConfig.balanced().merged({"token_fairness": 8})
        assert await control.current() == made
        assert fake_engine.in_force == (2, made.config.as_dict())

    run(story())
    stored = rows(started_store, policy_versions)
    assert [(row["version"], row["state"], row["token_fairness"]) for row in stored] == [
        (1, "applied", 16.0),
        (2, "applied", 8.0),
    ]


def test_the_preset_comes_first_and_then_the_coefficients(control):
    made = run(change(control, preset="throughput", coefficients={"decode_age_price": 0.5}))
    assert made.config == PolicyConfig.throughput().merged({"decode_age_price": 0.5})
    assert made.preset is None


def test_a_version_with_a_presets_values_carries_its_name(control):
    made = run(change(control, coefficients={"delivery_fairness": 0, "decode_age_price": 0}))
    assert made.preset == "throughput"
    assert run(change(control, expected_version=2, preset="budget:512")).preset == "budget:512"
    assert (
        run(change(control, expected_version=3, preset="budget:512", coefficients={"token_budget": 256})).preset
        == "budget:256"
    )
    interactive = run(change(control, expected_version=4, preset="interactive"))
    assert (interactive.preset, interactive.config) == ("interactive", PolicyConfig.interactive())


def test_unchanged_values_make_no_version_and_do_not_reach_the_engine(control, fake_engine, started_store):
    same = run(change(control, preset="balanced", coefficients={"token_fairness": 16, "estimate_ttl_ns": 3e10}))
    assert same.version == 1
    assert fake_engine.taken == []
    assert len(rows(started_store, policy_versions)) == 1
    assert [row["outcome"] for row in rows(started_store, policy_attempts)] == ["unchanged"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"coefficients": {"token_fairness": -1}}, {"token_fairness"}),
        ({"coefficients": {"token_fairness": float("nan"), "adaptation_ms": 0}}, {"token_fairness", "adaptation_ms"}),
        ({"coefficients": {"token_fairness": float("inf")}}, {"token_fairness"}),
        ({"coefficients": {"token_fairness": True}}, {"token_fairness"}),
        ({"coefficients": {"token_fairness": "8"}}, {"token_fairness"}),
        ({"coefficients": {"estimate_ttl_ns": 2**63}}, {"estimate_ttl_ns"}),
        ({"coefficients": {"token_fairness": 10**400}}, {"token_fairness"}),
        ({"coefficients": {"newcomer_memory": "elephant"}}, {"newcomer_memory"}),
        ({"coefficients": {"fairness\0\ud800": 1}}, {"fairness\0\ud800"}),
        ({"coefficients": [1]}, {"coefficients"}),
        ({"coefficients": {1: 2}}, {"coefficients"}),
        ({"preset": "fast", "coefficients": {"token_fairness": -1}}, {"preset", "token_fairness"}),
        ({"preset": ["balanced"]}, {"preset"}),
    ],
)
def test_one_bad_coefficient_changes_nothing_and_every_bad_one_is_named(
    control, fake_engine, started_store, given, named
):
    """C36."""
    good = {"terminal_value": 1.0}
    if isinstance(given.get("coefficients"), dict) and 1 not in given["coefficients"]:
        given = {**given, "coefficients": {**good, **given["coefficients"]}}
    with pytest.raises(InvalidPolicy) as caught:
        run(change(control, **given))
    assert set(caught.value.problems) == named
    assert fake_engine.taken == []
    assert len(rows(started_store, policy_versions)) == 1
    assert [row["outcome"] for row in rows(started_store, policy_attempts)] == ["invalid"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"actor": ""}, "actor"),
        ({"actor": "  "}, "actor"),
        ({"actor": "a" * 101}, "actor"),
        ({"actor": "anna\x1b[2J"}, "actor"),
        ({"actor": "anna\u202egnp.exe"}, "actor"),
        ({"actor": None}, "actor"),
        ({"note": "n" * 501}, "note"),
        ({"note": "two\nlines"}, "note"),
        ({"note": "nul\0"}, "note"),
        ({"note": "\ud800"}, "note"),
        ({"note": 7}, "note"),
        ({"expected_version": 0}, "expected_version"),
        ({"expected_version": True}, "expected_version"),
        ({"expected_version": 2**63}, "expected_version"),
        ({"expected_version": "1"}, "expected_version"),
    ],
)
def test_a_bad_actor_note_or_version_is_named_and_changes_nothing(control, fake_engine, started_store, given, named):
    with pytest.raises(InvalidChange) as caught:
        run(change(control, coefficients={"token_fairness": 8}, **given))
    assert caught.value.name == named
    assert fake_engine.taken == []
    assert len(rows(started_store, policy_versions)) == 1
    assert [row["outcome"] for row in rows(started_store, policy_attempts)] == ["invalid"]


def test_the_error_of_a_text_that_is_too_long_names_the_limit(control):
    with pytest.raises(InvalidChange, match="actor: has 101 characters; at most 100 are kept"):
        run(change(control, coefficients={"token_fairness": 8}, actor="a" * 101))
    with pytest.raises(InvalidChange, match="note: has 501 characters; at most 500 are kept"):
        run(change(control, coefficients={"token_fairness": 8}, note="n" * 501))


@pytest.mark.parametrize("actor", ["Zoë", "علی\u200cرضا", "o'brien", "x" * 100])
def test_names_of_people_are_kept_as_they_are(control, actor):
    assert run(change(control, coefficients={"token_fairness": 8}, actor=actor)).actor == actor


def test_a_stale_save_is_refused_with_the_difference_and_both_are_in_the_audit(control, fake_engine, started_store):
    """C37."""

    async def story():
        theirs = await change(control, coefficients={"token_fairness": 8, "terminal_value": 100}, actor="bo")
        with pytest.raises(StalePolicy) as caught:
            await change(control, coefficients={"token_fairness": 4, "terminal_value": 100})
        assert caught.value.current == theirs
        assert caught.value.difference == {"token_fairness": {"yours": 4.0, "theirs": 8.0}}
        assert "by bo at" in str(caught.value)
        assert await control.current() == theirs

    run(story())
    assert fake_engine.taken == [2]
    audit = rows(started_store, policy_attempts)
    assert [(row["actor"], row["outcome"]) for row in audit] == [("bo", "applied"), ("anna", "stale")]
    assert audit[1]["request"]["coefficients"] == {"token_fairness": 4, "terminal_value": 100}


def test_the_difference_also_names_what_the_others_changed_and_the_caller_did_not(control):
    async def story():
        await change(control, coefficients={"adaptation_ms": 50}, actor="bo")
        with pytest.raises(StalePolicy) as caught:
            await change(control, coefficients={"token_fairness": 4})
        return caught.value.difference

    assert run(story()) == {
        "token_fairness": {"yours": 4.0, "theirs": 16.0},
        "adaptation_ms": {"yours": 100.0, "theirs": 50.0},
    }


def test_a_version_that_never_was_is_stale_too(control):
    with pytest.raises(StalePolicy):
        run(change(control, expected_version=99, coefficients={"token_fairness": 4}))


def test_a_change_waits_for_no_one_elses_pending_change(control, fake_engine, started_store):
    with write_transaction(started_store) as connection:
        values = rows(started_store, policy_versions)[0] | {"version": 2, "state": "pending", "actor": "bo"}
        values |= {"created_at": dt.datetime.now(dt.UTC), "applied_at": None}
        connection.execute(policy_versions.insert().values(values))
    with pytest.raises(ChangeInProgress, match="version 2 by bo"):
        run(change(control, coefficients={"token_fairness": 4}))
    assert fake_engine.taken == []
    assert [row["outcome"] for row in rows(started_store, policy_attempts)] == ["pending"]


def test_a_pending_change_of_a_process_that_died_is_refused_after_a_minute(control, started_store):
    with write_transaction(started_store) as connection:
        values = rows(started_store, policy_versions)[0] | {"version": 2, "state": "pending", "applied_at": None}
        values |= {"created_at": dt.datetime.now(dt.UTC) - dt.timedelta(seconds=61)}
        connection.execute(policy_versions.insert().values(values))
    assert run(change(control, coefficients={"token_fairness": 4})).version == 3
    assert [row["state"] for row in rows(started_store, policy_versions)] == ["applied", "refused", "applied"]


def test_a_rollback_is_a_new_version_with_the_old_values(control, fake_engine):
    async def story():
        await change(control, coefficients={"token_fairness": 8})
        await change(control, expected_version=2, coefficients={"token_fairness": 2})
        to_parent = await control.rollback(expected_version=3, actor="anna")
        to_first = await control.rollback(expected_version=4, to_version=1, actor="bo", note="it was fine")
        return to_parent, to_first, await control.history()

    to_parent, to_first, history = run(story())
    assert (to_parent.version, to_parent.config.token_fairness, to_parent.note) == (4, 8.0, "rollback to 2")
    assert (to_first.version, to_first.parent_version, to_first.preset) == (5, 4, "balanced")
    assert to_first.note == "rollback to 1: it was fine"
    assert [version.version for version in history] == [5, 4, 3, 2, 1]
    assert fake_engine.taken == [2, 3, 4, 5]


@pytest.mark.parametrize("to_version", [None, 7])
def test_a_rollback_to_nowhere_says_so(control, started_store, to_version):
    with pytest.raises(UnknownVersion, match="no"):
        run(control.rollback(expected_version=1, to_version=to_version, actor="anna"))
    assert [row["outcome"] for row in rows(started_store, policy_attempts)] == ["invalid"]


def test_a_rollback_to_a_refused_version_is_not_possible(control, fake_engine):
    async def story():
        fake_engine.failures = [RuntimeError("no")]
        with pytest.raises(RuntimeError):
            await change(control, coefficients={"token_fairness": 8})
        with pytest.raises(UnknownVersion, match="refused and was never in force"):
            await control.rollback(expected_version=1, to_version=2, actor="anna")

    run(story())


def test_a_stale_rollback_is_refused(control):
    async def story():
        await change(control, coefficients={"token_fairness": 8})
        await change(control, expected_version=2, coefficients={"token_fairness": 2})
        with pytest.raises(StalePolicy) as caught:
            await control.rollback(expected_version=2, to_version=1, actor="anna")
        return caught.value.difference

    assert run(story()) == {"token_fairness": {"yours": 16.0, "theirs": 2.0}}


def test_before_the_first_start_there_is_no_policy(any_store, fake_engine):
    control = PolicyControl(any_store, fake_engine.apply)
    with pytest.raises(NoPolicy, match="helios serve"):
        run(control.current())
    with pytest.raises(NoPolicy):
        run(change(control, coefficients={"token_fairness": 8}))


def test_a_stored_version_with_impossible_values_is_named(control, started_store):
    with write_transaction(started_store) as connection:
        connection.execute(policy_versions.update().values(newcomer_memory="elephant"))
    with pytest.raises(UnreadablePolicy, match=r"version 1 .*newcomer_memory"):
        run(control.current())


def test_one_unreadable_version_is_left_out_of_the_history_and_the_rest_is_shown(control, started_store, caplog):
    async def story():
        for version in (1, 2):
            await change(control, expected_version=version, coefficients={"token_fairness": version})
        with write_transaction(started_store) as connection:
            damaged = policy_versions.update().where(policy_versions.c.version == 2)
            connection.execute(damaged.values(newcomer_memory="elephant"))
        assert [version.version for version in await control.history()] == [3, 1]
        assert (await control.current()).version == 3
        with pytest.raises(UnreadablePolicy):
            await control.rollback(expected_version=3, to_version=2, actor="anna")

    run(story())
    assert "newcomer_memory" in caplog.text


def test_the_audit_keeps_the_newest_attempts(control, started_store, monkeypatch):
    monkeypatch.setattr(versions, "MAX_ATTEMPTS", 3)

    async def story():
        for number in range(5):
            with pytest.raises(InvalidPolicy):
                await change(control, coefficients={"no_such": number})
        await change(control, coefficients={"token_fairness": 8})

    run(story())
    kept = rows(started_store, policy_attempts)
    assert [row["outcome"] for row in kept] == ["invalid", "invalid", "applied"]
    assert [row["request"]["coefficients"] for row in kept[:2]] == [{"no_such": 3}, {"no_such": 4}]


def test_dropping_old_attempts_reads_no_whole_table(store):
    with write_transaction(store) as connection:
        seen = []
        sa.event.listen(connection, "before_cursor_execute", lambda *given: seen.append(given[2:4]))
        versions.record_attempt(connection, "invalid", "", {}, "anna", dt.datetime.now(dt.UTC))
        (delete,) = [(text, values) for text, values in seen if text.startswith("DELETE")]
        steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {delete[0]}", delete[1]).all()
    assert [row[3] for row in steps] == ["SEARCH policy_attempts USING INTEGER PRIMARY KEY (rowid<?)"]


def test_anything_can_be_written_into_the_audit(control, started_store):
    async def story():
        odd = {f"name{n}": n for n in range(100)} | {
            "a\0": "x" * 5000,
            "b": 10**5000,
            "c": [object()],
            "d": {"e": 1e999},
        }
        with pytest.raises(InvalidPolicy):
            await change(control, coefficients=odd, actor="\ud800\0")

    run(story())
    (row,) = rows(started_store, policy_attempts)
    assert row["actor"] == "��"
    assert row["request"]["coefficients"]["…"] == "72 more"
    assert row["at"].tzinfo is not None


def test_versions_are_frozen(control):
    with pytest.raises(dataclasses.FrozenInstanceError):
        run(control.current()).version = 7
