"""What helios serve prints."""

from __future__ import annotations

import io
import json
import shlex

import pytest
from rich.console import Console

from service.settings import Settings
from service.supervisor.report import Report, base_url
from service.supervisor.supervision import ENGINE, RECORDER

SETTINGS = Settings(data_dir="/data", database="sqlite:////data/helios.db", threads=2, port=8123)


def printed(terminal: bool, settings: Settings = SETTINGS, model: str = "a-model") -> tuple[Report, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=60, soft_wrap=True, highlight=False)
    return Report(settings, model, console), output


def test_without_a_terminal_every_line_is_printed_whole_and_unadorned():
    report, output = printed(terminal=False)
    report.starting()
    long = "warming up [bold]decode[/bold] :smile: " + "x" * 200 + " (37%)"
    report.line(ENGINE, long)
    report.ready()
    assert f"  engine | {long}\n" in output.getvalue()
    assert "\x1b" not in output.getvalue()


def test_at_a_terminal_the_engines_progress_moves_a_bar_and_other_lines_are_printed():
    report, output = printed(terminal=True)
    report.starting()
    report.line(ENGINE, "warming up decode:B4 (67%)")
    report.line(ENGINE, "a warning")
    report.line(RECORDER, "behind (12%)")
    report.still()
    report.line(ENGINE, "later (5%)")
    lines = output.getvalue()
    assert "engine | warming up" not in lines
    for text in ("engine | a warning", "recorder | behind (12%)", "engine | later (5%)"):
        assert text in lines


@pytest.mark.parametrize("model", ["smollm2", 'it\'s "quoted" $HOME `id` 100 %s'])
def test_the_example_is_a_command_that_a_shell_passes_on_whole(model):
    report, output = printed(terminal=False, model=model)
    report.ready()
    (line,) = [line for line in output.getvalue().splitlines() if line.startswith("  try ")]
    words = shlex.split(line)
    assert words[1:3] == ["curl", "http://127.0.0.1:8123/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == model


def test_an_ipv6_address_gets_its_brackets():
    settings = Settings(data_dir="/data", database="", threads=2, host="::1", port=8123)
    assert base_url(settings) == "http://[::1]:8123"
