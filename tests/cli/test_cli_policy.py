"""helios policy."""

from __future__ import annotations

import json
import pwd

import pytest

from scheduler.policy import PolicyConfig
from service.settings import server_address

VERSION = {
    "version": 3,
    "preset": "balanced",
    "coefficients": PolicyConfig.balanced().as_dict(),
    "created_at": "2026-11-29T18:30:00Z",
    "applied_at": "2026-11-29T18:30:00Z",
    "actor": "ada",
    "note": "as it was",
}


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


@pytest.mark.parametrize("preset", ["interactive", "budget:512"])
def test_policy_set_takes_a_preset_by_itself(helios, control, preset):
    control.answers["GET", "/api/policy"] = (200, VERSION)
    control.answers["PUT", "/api/policy"] = (200, {**VERSION, "version": 4, "preset": preset})
    result = helios("policy", "set", "--preset", preset, "--server", control.url)
    assert result.stdout.startswith(f"version 4 ({preset})")
    assert control.calls[-1][3]["preset"] == preset


def test_what_the_server_says_of_a_policy_is_a_warning_beside_it(helios, control):
    warned = {**VERSION, "version": 4, "warnings": ["start it with --mixed-prefill"]}
    control.answers["GET", "/api/policy"] = (200, VERSION)
    control.answers["PUT", "/api/policy"] = (200, warned)
    result = helios("policy", "set", "--preset", "interactive", "--server", control.url)
    assert (result.exit_code, result.stderr) == (0, "warning: start it with --mixed-prefill\n")
    control.answers["GET", "/api/policy"] = (200, warned)
    shown = helios("policy", "show", "--server", control.url, "--json")
    assert (json.loads(shown.stdout), shown.stderr) == (warned, "")
    assert helios("policy", "show", "--server", control.url).stderr == "warning: start it with --mixed-prefill\n"


@pytest.mark.parametrize("command", ["set", "guard open", "preview"])
def test_a_preset_that_there_is_not_is_refused_with_the_forms(helios, control, command):
    result = helios("policy", *command.split(), "--preset", "budget:none", "--server", control.url)
    assert result.exit_code == 2
    assert "must be one of balanced, interactive, throughput, or budget:N" in result.output
    assert control.calls == []


def test_policy_set_takes_a_given_version_and_the_users_name(helios, control):
    control.answers["PUT", "/api/policy"] = (200, VERSION)
    control.answers["GET", "/api/policy"] = (200, VERSION)
    helios("policy", "set", "terminal_value=1", "--if-version", "2", "--server", control.url)
    _, _, version, body = control.calls[-1]
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


def changed_version(number: int, parent: int | None, **coefficients: object) -> dict[str, object]:
    values = {**VERSION["coefficients"], **coefficients}
    return {**VERSION, "version": number, "parent_version": parent, "coefficients": values, "preset": None}


def test_policy_set_prints_what_changed_and_the_new_version(helios, control):
    control.answers["GET", "/api/policy"] = (200, VERSION)
    control.answers["PUT", "/api/policy"] = (200, changed_version(4, 3, terminal_value=512))
    command = ("policy", "set", "terminal_value=512", "--server", control.url)
    lines = helios(*command).stdout.splitlines()
    assert lines[0].startswith("version 4 (no preset), ")
    assert lines[1:] == ["  terminal_value  256.0 -> 512 prompt tokens"]
    assert json.loads(helios(*command, "--json").stdout)["changed"] == {"terminal_value": {"before": 256, "after": 512}}


def test_policy_set_says_when_nothing_changed(helios, control):
    control.answers["GET", "/api/policy"] = control.answers["PUT", "/api/policy"] = (200, VERSION)
    result = helios("policy", "set", "terminal_value=256", "--server", control.url)
    assert (result.exit_code, result.stdout) == (0, "nothing changed: version 3 stays\n")


def test_policy_history_shows_what_changed_against_the_parent_even_when_that_is_further_back(helios, control):
    items = [changed_version(3, 1, decode_age_price=0.2), changed_version(2, 1), changed_version(1, None)]
    items[1]["state"] = "refused"
    control.answers["GET", "/api/policy/history"] = (200, {"items": items, "next": None})
    result = helios("policy", "history", "--limit", "5", "--server", control.url)
    assert [call[1] for call in control.calls] == ["/api/policy/history?limit=5"]
    rows = result.stdout.splitlines()
    assert "changed" in rows[0]
    assert rows[1].rstrip().endswith("decode_age_price 0.1 -> 0.2")
    assert rows[2].rstrip().endswith("nothing")
    assert rows[3].rstrip().endswith("(first)")
    assert {"ada", "as", "was"} <= set(rows[1].split())
    control.answer_once("/api/policy/history", (200, {"items": items[:1], "next": None}))
    result = helios("policy", "history", "--limit", "1", "--server", control.url, "--json")
    assert control.calls[-1][1] == "/api/policy/history?limit=1000"
    (item,) = json.loads(result.stdout)["items"]
    assert item["changed"] == {"decode_age_price": {"before": 0.1, "after": 0.2}}


@pytest.fixture
def three_versions(control):
    versions = [changed_version(3, 2, terminal_value=9), changed_version(2, 1, terminal_value=8)]
    versions.append(changed_version(1, None))
    control.answers["GET", "/api/policy"] = (200, versions[0])
    control.answers["GET", "/api/policy/history"] = (200, {"items": versions, "next": None})
    control.answers["POST", "/api/policy/rollback"] = (200, changed_version(4, 3, terminal_value=8))
    return control


def test_policy_rollback_shows_first_what_it_changes_and_asks_nothing_without_a_terminal(helios, three_versions):
    result = helios("policy", "rollback", "--actor", "bo", "--server", three_versions.url)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "returning from version 3 to the values of version 2 changes:",
        "  terminal_value  9 -> 8 prompt tokens",
    ]
    assert result.stdout.startswith("version 4 ")
    body = {"actor": "bo", "note": "", "to_version": 2}
    assert three_versions.calls[-1] == ("POST", "/api/policy/rollback", '"3"', body)


@pytest.mark.parametrize(
    ("answer", "options", "sent"), [("n\n", [], False), ("y\n", [], True), ("", ["--yes"], True), ("", [], False)]
)
def test_policy_rollback_asks_at_a_terminal(helios, three_versions, monkeypatch, answer, options, sent):
    monkeypatch.setattr("service.cli.policy.at_terminal", lambda: True)
    result = helios("policy", "rollback", "--to-version", "1", *options, "--server", three_versions.url, input=answer)
    assert ("Return to them?" in result.stderr) is (not options)
    assert any(call[0] == "POST" for call in three_versions.calls) is sent
    assert (result.exit_code == 0) is sent


def test_policy_rollback_from_the_first_version_changes_nothing(helios, control):
    control.answers["GET", "/api/policy"] = (200, changed_version(1, None))
    result = helios("policy", "rollback", "--server", control.url)
    assert result.exit_code == 2
    assert "version 1 is the first one" in result.stderr


def test_a_stale_change_is_refused_in_words_of_the_command_line(helios, control):
    control.answers["GET", "/api/policy"] = (200, VERSION)
    control.answers["PUT", "/api/policy"] = (409, {
        "code": "stale_policy", "current_version": 3, "detail": 'Read GET /api/policy and send If-Match: "3"',
        "difference": {"terminal_value": {"yours": 1, "theirs": 256}},
    })  # fmt: skip
    result = helios("policy", "set", "terminal_value=1", "--if-version", "2", "--server", control.url)
    assert result.exit_code == 1
    assert result.stderr == (
        "helios policy set: version 3 is in force, not 2 (terminal_value: yours 1, theirs 256); "
        "look at it with helios policy show, then repeat this with --if-version 3\n"
    )


def test_the_server_is_found_by_the_environment_or_the_running_servers_file(helios, control, tmp_path):
    control.answers["GET", "/api/policy"] = (200, VERSION)
    assert helios("policy", "show", env={"HELIOS_SERVER": control.url}).exit_code == 0
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "address").write_text(f"{control.url}\n")
    environment = {"HELIOS_SERVER": "", "HELIOS_DATA_DIR": str(tmp_path)}
    assert helios("policy", "show", env=environment).exit_code == 0
    assert server_address({"HELIOS_DATA_DIR": str(tmp_path / "none")}) == "http://127.0.0.1:8000"
    assert "HELIOS_SERVER" in helios("policy", "show", "--help").stdout


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
