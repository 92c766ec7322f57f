"""`helios selfcheck`: whether this machine computes what it should."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import click

from service.cli.output import Command, fail, json_option, prepare_kernels, print_json, print_table, progress_bar

CHECKER = (sys.executable, "-P", "-m", "service.engine.selfcheck")
"""The checks run in a process of their own, as the engine does: the command line imports no torch."""

COLUMNS = ("check", "result", "seconds", "found")
LAST_WORDS = 3


@click.command(cls=Command, epilog="Example: helios selfcheck --device cuda --json")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="What to run the checks on."
)
@json_option
def selfcheck(device: str, as_json: bool) -> None:
    """Check that this machine computes what it should, and how fast; for an issue report, too.

    Logits, speculation, memory, every kind of program and row allocation are compared with slow, obvious twins; on
    CUDA every program is captured and replayed. Times are reported and never fail. Takes under a minute on a CPU and
    under eight on CUDA. Exits 0 when all passed, 1 when a check failed, 2 when it cannot run here.
    """
    prepare_kernels()
    outcomes = run_checks((*CHECKER, device))
    failed = any(outcome["status"] == "failed" for outcome in outcomes)
    if as_json:
        print_json({"device": device, "passed": not failed, "checks": outcomes})
    else:
        print_table(COLUMNS, [_row(outcome) for outcome in outcomes])
    if failed:
        raise click.exceptions.Exit(1)


def run_checks(command: tuple[str, ...]) -> list[dict[str, Any]]:
    """The outcomes in order. A checker that dies fails the check that it was at; one that cannot check ends this."""
    names: collections.deque[str] = collections.deque()
    outcomes: list[dict[str, Any]] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as checker:
            lines = _lines(checker)
            first = next(lines, {})
            names.extend(first.get("checks", ()))
            if "unavailable" in first:
                fail(first["unavailable"])
            with progress_bar("checking", len(names)) as show:
                for line in lines:
                    if "status" in line:
                        outcomes.append(line)
                        show(len(outcomes))
        if len(outcomes) < len(names) or not names:
            errors.seek(0)
            why = f"the checking process ended with {checker.returncode}: {_last_words(errors.read())}"
            if not names:
                fail(why, code=1)
            outcomes.append({"name": names[len(outcomes)], "status": "failed", "detail": why, "seconds": None})
    return outcomes


def _lines(checker: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert checker.stdout is not None
    for line in checker.stdout:
        if line.startswith("{"):
            yield json.loads(line)


def _last_words(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-LAST_WORDS:]) or "it said nothing"


def _row(outcome: dict[str, Any]) -> dict[str, object]:
    seconds = outcome["seconds"]
    return {
        "check": outcome["name"],
        "result": outcome["status"],
        "seconds": None if seconds is None else f"{seconds:.1f}",
        "found": outcome["detail"],
    }
