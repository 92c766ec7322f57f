"""helios db and helios policy."""

from __future__ import annotations

import json
import pwd

import pytest

from scheduler.policy import PolicyConfig

VERSION = {
    "version": 3,
    "preset": "balanced",
    "coefficients": PolicyConfig.balanced().as_dict(),
    "created_at": "2026-11-29T18:30:00Z",
    "applied_at": "2026-11-29T18:30:00Z",
    "actor": "ada",
    "note": "as it was",
}


def test_db_says_missing_then_makes_the_store_then_says_current(helios, tmp_path):
    missing = helios("db", "check", "--data-dir", tmp_path, "--json")
    assert (missing.exit_code, json.loads(missing.stdout)["state"]) == (1, "missing")
    made = helios("db", "upgrade", "--data-dir", tmp_path)
    assert made.exit_code == 0
    assert "upgraded from nothing" in made.stdout
    again = helios("db", "upgrade", "--data-dir", tmp_path)
    assert "already at schema" in again.stdout
    current = helios("db", "check", "--integrity", "--data-dir", tmp_path, "--json")
    assert (current.exit_code, json.loads(current.stdout)["state"]) == (0, "current")


def test_db_refuses_what_is_no_database_with_exit_2(helios, tmp_path):
    path = tmp_path / "letter.db"
    path.write_bytes(b"Dear aunt, " * 1000)
    for command in ("check", "upgrade"):
        result = helios("db", command, "--database", path)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"helios db {command}: ")
        assert result.stderr.count("\n") == 1


def test_policy_show_prints_every_coefficient_with_its_unit(helios, control):
    control.answers["GET", "/api/policy"] = (200, VERSION)
    result = helios("policy", "show", "--server", control.url)
    assert "version 3 (balanced)" in result.stdout
    assert all(name in result.stdout for name in VERSION["coefficients"])
    assert json.loads(helios("policy", "show", "--server", control.url, "--json").stdout) == VERSION


def test_policy_set_sends_numbers_and_names_on_top_of_the_current_version(helios, control):
    control.answers["GET", "/api/policy"] = (200, VERSION)
    control.answers["PUT", "/api/policy"] = (200, {**VERSION, "version": 4})
    result = helios(
        "policy", "set", "terminal_value=512", "decode_age_price=1e-2", "newcomer_memory=decode", "--note", "busy",
        "--preset", "throughput", "--actor", "bo", "--server", control.url,
    )  # fmt: skip
    assert "version 4" in result.stdout
    assert control.calls[-1] == (
        "PUT",
        "/api/policy",
        '"3"',
        {
            "coefficients": {"terminal_value": 512, "decode_age_price": 0.01, "newcomer_memory": "decode"},
            "actor": "bo",
            "note": "busy",
            "preset": "throughput",
        },
    )


def test_policy_set_takes_a_given_version_and_the_users_name(helios, control):
    control.answers["PUT", "/api/policy"] = (200, VERSION)
    helios("policy", "set", "terminal_value=1", "--if-version", "2", "--server", control.url)
    ((_, _, version, body),) = control.calls
    assert version == '"2"'
    assert body["actor"] in {entry.pw_name for entry in pwd.getpwall()} or body["actor"].startswith("uid ")


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["terminal_value"],
        ["no_such=1"],
        ["terminal_value=-1"],
        ["terminal_value=nan"],
        ["terminal_value=many"],
        ["terminal_value="],
        ["newcomer_memory=goldfish"],
        ["estimate_ttl_ns=1.5"],
        ["terminal_value=1", "terminal_value=2"],
    ],
    ids=str,
)
def test_policy_set_refuses_a_bad_change_with_exit_2_and_asks_no_server(helios, control, changes):
    result = helios("policy", "set", *changes, "--server", control.url)
    assert result.exit_code == 2
    assert control.calls == []


def test_policy_rollback_and_history_use_the_control_api(helios, control):
    control.answers["GET", "/api/policy"] = (200, VERSION)
    control.answers["POST", "/api/policy/rollback"] = (200, {**VERSION, "version": 4})
    control.answers["GET", "/api/policy/history"] = (200, {"items": [VERSION], "next": None})
    helios("policy", "rollback", "--to-version", "1", "--actor", "bo", "--server", control.url)
    assert control.calls[-1] == (
        "POST", "/api/policy/rollback", '"3"', {"actor": "bo", "note": "", "to_version": 1}
    )  # fmt: skip
    result = helios("policy", "history", "--limit", "5", "--server", control.url)
    assert control.calls[-1][1] == "/api/policy/history?limit=5"
    assert "as it was" in result.stdout
    assert "ada" in result.stdout


@pytest.mark.parametrize(("status", "code"), [(400, 2), (422, 2), (409, 1), (428, 1), (503, 1), (500, 1), (404, 1)])
def test_what_the_server_refuses_is_said_in_its_words(helios, control, status, code):
    control.answers["GET", "/api/policy"] = (status, {"title": "No", "detail": "because it is Sunday"})
    result = helios("policy", "show", "--server", control.url)
    assert (result.exit_code, result.stderr) == (code, "helios policy show: because it is Sunday\n")


def test_a_server_that_is_none_of_ours_or_away_is_said_in_one_line(helios, control):
    control.answers["GET", "/api/policy"] = (200, b"<html>")
    assert helios("policy", "show", "--server", control.url).exit_code == 1
    away = helios("policy", "show", "--server", "http://127.0.0.1:1")
    assert away.exit_code == 1
    assert "is helios serve running there?" in away.stderr
    assert away.stderr.count("\n") == 1
