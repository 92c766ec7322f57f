"""`helios selfcheck`: what it runs, what it prints, and how it ends."""

from __future__ import annotations

import json
import sys

import pytest

from service.cli import selfcheck


@pytest.fixture
def checker(monkeypatch):
    """Puts a process that says these lines, and ends with this code, in the place of the checks."""

    def put(*lines, code=0, says="") -> None:
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        program = f"import sys; sys.stdout.write({text!r}); sys.stderr.write({says!r}); sys.exit({code})"
        monkeypatch.setattr(selfcheck, "CHECKER", (sys.executable, "-c", program))
        monkeypatch.setattr(selfcheck, "prepare_kernels", lambda: None)

    return put


def outcome(name, status="passed", detail="well"):
    return {"name": name, "status": status, "detail": detail, "seconds": 0.25}


def test_this_machine_passes(helios):
    answer = helios("selfcheck", "--json")
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    results = {check["name"]: check["status"] for check in document["checks"]}
    assert document["passed"]
    assert results == {
        "versions": "passed",
        "logits against the reference": "passed",
        "greedy speculation is plain decoding": "passed",
        "poisoned buffers": "passed",
        "several prompts in one program": "passed",
        "captured form is the eager form": "passed",
        "every kind of program runs": "passed",
        "row allocation against the reference": "passed",
        "replay against eager": "skipped",
        "plan latency and busy share at 8 streams": "passed",
    }


def test_what_cannot_be_checked_here_ends_with_one_line(helios, checker):
    checker({"unavailable": "there is no CUDA;\nuse --device cpu"}, code=2)
    answer = helios("selfcheck", "--device", "cuda")
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr == "helios selfcheck: there is no CUDA; use --device cpu\n"


def test_a_failed_check_is_in_the_table_and_the_exit_code(helios, checker):
    checker({"checks": ["a", "b"]}, {"begins": "a"}, outcome("a"), outcome("b", "failed", "off by one"), code=1)
    answer = helios("selfcheck")
    assert answer.exit_code == 1
    rows = [line.split() for line in answer.stdout.splitlines()]
    assert rows[1:] == [["a", "passed", "0.2", "well"], ["b", "failed", "0.2", "off", "by", "one"]]
    assert not json.loads(helios("selfcheck", "--json").stdout)["passed"]


def test_other_output_of_the_checks_is_left_out(helios, checker):
    checker("a library's greeting", {"checks": ["a"]}, "another", outcome("a"))
    assert helios("selfcheck").exit_code == 0


def test_checks_that_die_fail_where_they_were(helios, checker):
    checker({"checks": ["a", "b", "c"]}, outcome("a"), {"begins": "b"}, code=134, says="first\nCUDA error: 700\n")
    answer = helios("selfcheck", "--json")
    assert answer.exit_code == 1
    document = json.loads(answer.stdout)
    assert [(check["name"], check["status"]) for check in document["checks"]] == [("a", "passed"), ("b", "failed")]
    assert document["checks"][1]["detail"] == "the checking process ended with 134: first | CUDA error: 700"


def test_checks_that_never_begin_end_with_one_line(helios, checker):
    checker(code=1, says="ImportError: no torch\n")
    answer = helios("selfcheck")
    assert answer.exit_code == 1
    assert answer.stderr == "helios selfcheck: the checking process ended with 1: ImportError: no torch\n"
