"""helios policy guard."""

from __future__ import annotations

import json

import pytest

from service.cli import policy_guard

CHECK = {
    "name": "first_token_p99", "bound": 110.0, "before": 100.0, "before_samples": 500, "value": 123.456, "samples": 210,
    "needed": 100, "verdict": "broken",
}  # fmt: skip
GUARD = {
    "version": 4, "parent_version": 3, "state": "watching", "actor": "bo", "minutes": 15.0, "limits": {},
    "opened_at": "2026-11-29T18:30:00Z", "ends_at": "2026-11-29T18:45:00Z", "decided_at": None, "reason": "",
    "evidence": {"watched_s": 12.5, "checks": [CHECK], "problems": ["the trace has 1 gap"]},
}  # fmt: skip
BROKEN = {**GUARD, "state": "rolled_back", "reason": "too slow", "decided_at": "2026-11-29T18:31:00Z"}
PATH = "/api/policy/guard"


@pytest.fixture
def guarded(control):
    control.answers["GET", "/api/policy"] = (200, {"version": 3})
    control.answers["POST", PATH] = (201, GUARD)
    control.answers["GET", PATH] = (200, {"watching": GUARD, "items": [GUARD, {**BROKEN, "version": 2}], "next": None})
    return control


def test_open_sends_the_change_with_its_limits(helios, guarded):
    result = helios(
        "policy", "guard", "open", "terminal_value=512", "--minutes", "2.5", "--first-token-p99", "500ms",
        "--inter-token-p99", "off", "--samples", "40", "--actor", "bo", "--note", "try", "--server", guarded.url,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "version 4 by bo, on trial since 2026-11-29T18:30:00Z until" in result.stdout
    assert "123.5" in result.stdout
    assert "against deciding: the trace has 1 gap" in result.stdout
    assert guarded.calls[-1] == (
        "POST",
        PATH,
        '"3"',
        {
            "coefficients": {"terminal_value": 512},
            "actor": "bo",
            "note": "try",
            "minutes": 2.5,
            "limits": {
                "first_token_p99": {"absolute": 500.0, "samples": 40},
                "inter_token_p99": None,
                "throughput": {"ratio": 0.95, "samples": 40},
            },
            "end_guard": False,
        },
    )


@pytest.mark.parametrize(
    "arguments",
    [["--first-token-p99", "1.1"], ["--first-token-p99", "300/s"], ["--throughput", "5ms"], ["--minutes", "0"],
     ["--throughput", "-1x"], ["--samples", "0"], ["no_such=1"], []],
    ids=str,
)  # fmt: skip
def test_open_refuses_wrong_usage_and_asks_no_server(helios, guarded, arguments):
    change = ["terminal_value=1"] if arguments and arguments[0].startswith("--") else []
    result = helios("policy", "guard", "open", *change, *arguments, "--server", guarded.url)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert guarded.calls == []


@pytest.mark.parametrize("command", [["open", "terminal_value=1"], ["status"]])
def test_wait_ends_with_the_decision_and_says_by_its_exit_that_the_change_was_taken_back(
    helios, guarded, monkeypatch, command
):
    decided = {"watching": None, "items": [BROKEN], "next": None}
    looks = []

    def look(_seconds):
        looks.append(True)
        if len(looks) == 3:
            guarded.answers["GET", PATH] = (200, decided)

    monkeypatch.setattr(policy_guard.time, "sleep", look)
    result = helios("policy", "guard", *command, "--wait", "--json", "--server", guarded.url)
    assert result.exit_code == 1
    assert json.loads(result.stdout) == BROKEN
    assert len(looks) == 3


def test_status_shows_the_one_that_watches_and_the_last_ones(helios, guarded):
    result = helios("policy", "guard", "status", "--server", guarded.url)
    assert result.exit_code == 0
    assert "12 s watched" in result.stdout
    assert "too slow" in result.stdout
    assert (
        json.loads(helios("policy", "guard", "status", "--json", "--server", guarded.url).stdout)["watching"] == GUARD
    )
    guarded.answers["GET", PATH] = (200, {"watching": None, "items": [], "next": None})
    assert helios("policy", "guard", "status", "--server", guarded.url).stdout.startswith("no guard watches\n")


def test_end_names_the_version_that_it_means(helios, guarded):
    guarded.answers["DELETE", PATH] = (200, {**GUARD, "state": "ended", "reason": "ended by bo, who kept the version"})
    result = helios("policy", "guard", "end", "--actor", "b o", "--server", guarded.url)
    assert result.stdout.endswith(": ended; ended by bo, who kept the version\n")
    assert guarded.calls[-1][:3] == ("DELETE", f"{PATH}?rollback=false&actor=b+o&note=", '"4"')
    helios("policy", "guard", "end", "--rollback", "--if-version", "7", "--actor", "bo", "--server", guarded.url)
    assert guarded.calls[-1][:3] == ("DELETE", f"{PATH}?rollback=true&actor=bo&note=", '"7"')
    guarded.answers["GET", PATH] = (200, {"watching": None, "items": [], "next": None})
    none = helios("policy", "guard", "end", "--server", guarded.url)
    assert (none.exit_code, none.stderr) == (1, "helios policy guard end: no guard watches\n")


def test_a_change_that_a_guard_forbids_says_what_to_do(helios, guarded):
    content = {"code": "guard_watches", "status": 409, "detail": "x", "version": 4}
    guarded.answers["PUT", "/api/policy"] = (409, content)
    result = helios("policy", "set", "terminal_value=1", "--server", guarded.url)
    assert result.exit_code == 1
    assert "a guard watches version 4" in result.stderr
    assert "--end-guard" in result.stderr
    helios("policy", "set", "terminal_value=1", "--end-guard", "--server", guarded.url)
    assert guarded.calls[-1][3]["end_guard"] is True
