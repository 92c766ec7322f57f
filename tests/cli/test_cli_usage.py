"""Every command: help with an example, exit 2 on wrong usage, no traceback for a user's mistake."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import click
import pytest

from service.cli import main
from service.cli.output import VERSION


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = dict(commands(main))


@pytest.mark.parametrize("path", [(), *ALL], ids=" ".join)
def test_every_command_has_help_with_an_example(helios, path):
    result = helios(*path, "--help")
    assert result.exit_code == 0
    assert f"Example: helios {' '.join(path)}".rstrip() in " ".join(result.output.split())


@pytest.mark.parametrize("path", [path for path, command in ALL.items() if not isinstance(command, click.Group)])
def test_every_command_refuses_an_unknown_option_in_one_line_that_names_its_help(helios, path):
    result = helios(*path, "--no-such-option")
    assert (result.exit_code, result.stdout) == (2, "")
    command = f"helios {' '.join(path)}"
    assert result.stderr.startswith(f"{command}: No such option")
    assert result.stderr.endswith(f"; {command} --help says more\n")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "helios: name a command: serve, "),
        (["policy"], "helios policy: name a command: show, "),
        (["fly"], "helios: No such command 'fly'"),
        (["policy", "fly"], "helios policy: No such command 'fly'"),
        (["db", "check", "--database"], "helios db check: Option '--database' requires an argument"),
        (["db", "check", "extra"], "helios db check: Got unexpected extra argument"),
        (["policy", "set", "no_such=1"], "helios policy set: 'no_such=1' is not NAME=VALUE"),
        (["serve", "--port", "0"], "helios serve: Invalid value for '--port'"),
        (["policy", "show", "--server", "nowhere"], "helios policy show: Invalid value for '--server'"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_2(helios, arguments, words):
    result = helios(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(words)


@pytest.mark.parametrize(
    "path",
    [path for path, command in ALL.items() if not isinstance(command, click.Group) and path != ("serve",)],
    ids=" ".join,
)
def test_every_command_that_reports_can_do_so_in_json(path):
    assert any("--json" in option.opts for option in ALL[path].params)


def test_the_version_is_the_installed_one(helios):
    assert helios("--version").output == f"helios, version {VERSION}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "0"], "--port"),
        (["--port", "65536"], "--port"),
        (["--port", "eighty"], "--port"),
        (["--dtype", "float8"], "--dtype"),
        (["--device", "tpu"], "--device"),
        (["--request-slots", "0"], "--request-slots"),
        (["--threads", "0"], "--threads"),
        (["--max-context", "-4"], "--max-context"),
        (["--kv-pages", "1.5"], "--kv-pages"),
        (["--scheduler-policy", "lucky"], "--scheduler-policy"),
        (["--scheduler-terminal-value", "-1"], "0 or more"),
        (["--scheduler-terminal-value", "nan"], "finite"),
        (["--scheduler-terminal-age-price", "inf"], "finite"),
        (["--scheduler-terminal-age-price", "dear"], "finite number"),
        (["--journal-budget", "8 buckets"], "512MiB"),
        (["--journal-budget", "1KiB"], "outside"),
        (["--journal-sync-ms", "0"], "--journal-sync-ms"),
        (["--otlp-endpoint", "localhost:4318"], "http://"),
        (["--database", "oracle://db/x"], "postgresql://"),
        (["--host", "0.0.0.0"], "helios keys add --credentials-file"),
        (["--host", "0.0.0.0", "--credentials-file", "/nowhere/keys.json"], "helios keys add --credentials-file"),
        (["--credentials-file", "/nowhere/keys.json"], "there is no /nowhere/keys.json"),
        (["--protect-metrics"], "--credentials-file"),
        (["--model", "gpt-17"], "smollm2-135m-instruct"),
        (["--data-dir", "/proc/self/helios"], "--data-dir"),
    ],
    ids=" ".join,
)
def test_serve_refuses_a_mistake_with_exit_2_and_words_that_help(helios, tmp_path, arguments, words):
    result = helios("serve", *arguments, env={"HELIOS_DATA_DIR": str(tmp_path)})
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_serve_refuses_a_port_in_use_and_a_broken_database(helios, tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        taken = helios("serve", "--data-dir", tmp_path, "--port", listener.getsockname()[1])
    assert taken.exit_code == 2
    assert taken.stderr.startswith("helios serve: port ")
    assert taken.stderr.count("\n") == 1
    (tmp_path / "helios.db").write_bytes(b"no database" * 1000)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    broken = helios("serve", "--data-dir", tmp_path, "--port", port)
    assert broken.exit_code == 2
    assert "helios.db" in broken.stderr
    assert broken.stderr.count("\n") == 1
