"""`helios policy show|set|history|rollback`: the same calls as the dashboard's form, from a shell."""

from __future__ import annotations

import os
import pwd
from typing import Any

import click

from scheduler.policy import COEFFICIENT_BY_NAME, COEFFICIENTS, PRESETS
from service.cli.control import call
from service.cli.output import Function, json_option, print_json, print_table
from service.cli.values import HttpUrl, coefficient_value

SERVER = "http://127.0.0.1:8000"


def user_name() -> str:
    """Who runs this command, for the version's actor."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def server_option(function: Function) -> Function:
    """`--server`."""
    return click.option(
        "--server", type=HttpUrl(), default=SERVER, show_default=True, help="Address of the running server."
    )(function)


def change_options(function: Function) -> Function:
    """Who, why and on top of which version."""
    function = click.option("--note", default="", help="Why; kept with the version.")(function)
    function = click.option("--actor", default=user_name, show_default="your user name", help="Who.")(function)
    return click.option(
        "--if-version",
        type=click.IntRange(1),
        help="Refuse unless this version is current.  [default: the current one]",
    )(function)


@click.group("policy")
def policy() -> None:
    """The scheduler's preferences on a running server. A change applies between two plans.

    Example: helios policy set terminal_value=512 --note "shorter queues"
    """


@policy.command("show", epilog="Example: helios policy show --json")
@server_option
@json_option
def show(server: str, as_json: bool) -> None:
    """The current version with the meaning of each coefficient."""
    _print_version(call(server, "GET", "/api/policy"), as_json)


@policy.command("set", epilog="Example: helios policy set terminal_value=512 decode_age_price=0.2 --note busy")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--preset", type=click.Choice(sorted(PRESETS)), help="Start from this preset, then apply the changes.")
@change_options
@server_option
@json_option
def set_coefficients(
    changes: tuple[str, ...], preset: str | None, if_version: int | None, actor: str, note: str, server: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Change coefficients; all of them or none."""
    coefficients = parse_changes(changes)
    if not coefficients and preset is None:
        raise click.UsageError("nothing to change; give NAME=VALUE or --preset")
    body: dict[str, Any] = {"coefficients": coefficients, "actor": actor, "note": note}
    if preset is not None:
        body["preset"] = preset
    version = if_version or call(server, "GET", "/api/policy")["version"]
    _print_version(call(server, "PUT", "/api/policy", body=body, version=version), as_json)


def parse_changes(changes: tuple[str, ...]) -> dict[str, Any]:
    """Coefficients from NAME=VALUE texts. Raises click.UsageError for every problem at once."""
    parsed: dict[str, Any] = {}
    problems = []
    for change in changes:
        name, equals, text = change.partition("=")
        known = COEFFICIENT_BY_NAME.get(name)
        if not equals or known is None:
            problems.append(f"{change!r} is not NAME=VALUE with one of {', '.join(COEFFICIENT_BY_NAME)}")
            continue
        if name in parsed:
            problems.append(f"{name} is given twice")
        parsed[name] = coefficient_value(name, text)
        why = known.problem(parsed[name])
        if why is not None:
            problems.append(f"{name} {why}")
    if problems:
        raise click.UsageError("; ".join(problems))
    return parsed


@policy.command("history", epilog="Example: helios policy history --limit 5")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many versions.")
@server_option
@json_option
def history(limit: int, server: str, as_json: bool) -> None:
    """Versions, newest first: when, who, why."""
    answer = call(server, "GET", "/api/policy/history", limit=limit)
    if as_json:
        print_json(answer)
    else:
        print_table(["version", "created_at", "state", "preset", "actor", "note"], answer["items"])


@policy.command("rollback", epilog="Example: helios policy rollback --to-version 3 --note 'too slow'")
@click.option("--to-version", type=click.IntRange(1), help="Version to return to.  [default: the one before]")
@change_options
@server_option
@json_option
def rollback(to_version: int | None, if_version: int | None, actor: str, note: str, server: str, as_json: bool) -> None:
    """Make a new version with an earlier version's coefficients."""
    body: dict[str, Any] = {"actor": actor, "note": note}
    if to_version is not None:
        body["to_version"] = to_version
    version = if_version or call(server, "GET", "/api/policy")["version"]
    _print_version(call(server, "POST", "/api/policy/rollback", body=body, version=version), as_json)


def _print_version(version: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(version)
        return
    click.echo(
        f"version {version['version']} ({version.get('preset') or 'no preset'}), {version.get('created_at')} "
        f"by {version.get('actor')}: {version.get('note') or 'no note'}"
    )
    rows = [
        {"coefficient": c.name, "value": version["coefficients"].get(c.name), "default": c.default, "unit": c.unit,
         "meaning": c.meaning}
        for c in COEFFICIENTS
    ]  # fmt: skip
    print_table(["coefficient", "value", "default", "unit", "meaning"], rows)
