"""`helios policy show|set|history|rollback`: the same calls as the dashboard's form, from a shell."""

from __future__ import annotations

import os
import pwd
import sys
from typing import Any

import click

from scheduler.policy import COEFFICIENT_BY_NAME, COEFFICIENTS
from service.cli.changes import Changes, change_lines, changed_text, changes, with_changes
from service.cli.control import call
from service.cli.deferred import DeferredCommands
from service.cli.output import Function, Group, fail, json_option, print_json, print_table
from service.cli.values import HttpUrl, PresetType, coefficient_value
from service.settings import DEFAULT_SERVER, server_address

LONGEST_HISTORY = 1000
SERVER_TEXT = f"$HELIOS_SERVER, else the server that runs on the default data directory, else {DEFAULT_SERVER}"
DEFERRED = {"preview": ("preview", "preview_command"), "guard": ("policy_guard", "guard")}


def user_name() -> str:
    """Who runs this command, for the version's actor."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def server_option(function: Function) -> Function:
    """`--server`."""
    text = f"Address of the running server.  [default: {SERVER_TEXT}]"
    return click.option("--server", type=HttpUrl(), default=server_address, help=text)(function)


def change_options(function: Function) -> Function:
    """Who, why and on top of which version."""
    function = click.option("--note", default="", help="Why; kept with the version.")(function)
    function = click.option("--actor", default=user_name, show_default="your user name", help="Who.")(function)
    return click.option(
        "--if-version",
        type=click.IntRange(1),
        help="Refuse unless this version is current.  [default: the current one]",
    )(function)


@click.group("policy", cls=Group, commands=DeferredCommands(DEFERRED))
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
@click.argument("given", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--preset", type=PresetType(), help="Start from this preset, then apply the changes.")
@click.option("--end-guard", is_flag=True, help="Also when a guard watches the current version: end it.")
@change_options
@server_option
@json_option
def set_coefficients(
    given: tuple[str, ...], preset: str | None, end_guard: bool, if_version: int | None, actor: str, note: str,
    server: str, as_json: bool,
) -> None:  # fmt: skip
    """Change coefficients; all of them or none. Prints what changed."""
    coefficients = parse_changes(given)
    if not coefficients and preset is None:
        raise click.UsageError("nothing to change; give NAME=VALUE or --preset")
    body: dict[str, Any] = {"coefficients": coefficients, "actor": actor, "note": note}
    if preset is not None:
        body["preset"] = preset
    if end_guard:
        body["end_guard"] = True
    before = call(server, "GET", "/api/policy")
    after = call(server, "PUT", "/api/policy", body=body, version=if_version or before["version"])
    _print_change(before, after, as_json)


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
@click.option(
    "--limit", type=click.IntRange(1, LONGEST_HISTORY), default=20, show_default=True, help="How many versions."
)
@server_option
@json_option
def history(limit: int, server: str, as_json: bool) -> None:
    """Versions, newest first: when, who, why, and what changed against the version before."""
    answer = call(server, "GET", "/api/policy/history", limit=limit)
    items = answer["items"]
    known = {item["version"]: item for item in items}
    if any(item.get("parent_version") not in (None, *known) for item in items) and limit < LONGEST_HISTORY:
        known = {item["version"]: item for item in _all_versions(server)}
    items = with_changes(items, known)
    if as_json:
        print_json({**answer, "items": items})
    else:
        rows = [{**item, "changed": changed_text(item)} for item in items]
        print_table(["version", "created_at", "state", "preset", "actor", "note", "changed"], rows)


@policy.command("rollback", epilog="Example: helios policy rollback --to-version 3 --note 'too slow'")
@click.option("--to-version", type=click.IntRange(1), help="Version to return to.  [default: the one before]")
@click.option("--yes", is_flag=True, help="Ask nothing. Without a terminal nothing is asked either.")
@change_options
@server_option
@json_option
def rollback(
    to_version: int | None, yes: bool, if_version: int | None, actor: str, note: str, server: str, as_json: bool
) -> None:
    """Make a new version with an earlier version's coefficients. Shows first what that changes."""
    before = call(server, "GET", "/api/policy")
    target = to_version or before.get("parent_version")
    if target is None:
        fail(f"version {before['version']} is the first one; there is none to return to")
    wanted = {item["version"]: item for item in _all_versions(server)}.get(target)
    if wanted is not None:
        _announce(before, target, changes(before, wanted), ask=not yes)
    body: dict[str, Any] = {"actor": actor, "note": note, "to_version": target}
    version = if_version or before["version"]
    _print_change(before, call(server, "POST", "/api/policy/rollback", body=body, version=version), as_json)


def _all_versions(server: str) -> list[dict[str, Any]]:
    """As many as the server keeps ready to list."""
    items: list[dict[str, Any]] = call(server, "GET", "/api/policy/history", limit=LONGEST_HISTORY)["items"]
    return items


def _announce(before: dict[str, Any], target: int, found: Changes, *, ask: bool) -> None:
    """Say on standard error what returning to `target` changes; `ask` at a terminal, and end the command at a no."""
    lines = [f"returning from version {before['version']} to the values of version {target} changes:"]
    click.echo("\n".join(lines + (change_lines(found) or ["  nothing"])), err=True)
    if found and ask and at_terminal() and not click.confirm("Return to them?", err=True):
        fail(f"nothing changed: version {before['version']} stays", 1)


def at_terminal() -> bool:
    """Whether someone is there who can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _print_change(before: dict[str, Any], after: dict[str, Any], as_json: bool) -> None:
    """The new version and what is different in it."""
    same = before["version"] == after["version"]
    found = {} if same else changes(before, after)
    if as_json:
        print_json({**after, "changed": found})
    elif same:
        click.echo(f"nothing changed: version {after['version']} stays")
    else:
        click.echo("\n".join([_headline(after), *change_lines(found)]))
    if not as_json:  # where they are in the answer
        _warn(after)


def _print_version(version: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(version)
        return
    click.echo(_headline(version))
    rows = [
        {"coefficient": c.name, "value": version["coefficients"].get(c.name), "default": c.default, "unit": c.unit,
         "meaning": c.meaning}
        for c in COEFFICIENTS
    ]  # fmt: skip
    print_table(["coefficient", "value", "default", "unit", "meaning"], rows)
    _warn(version)


def _warn(version: dict[str, Any]) -> None:
    """What the server says of the policy, on standard error."""
    for line in version.get("warnings", []):
        click.echo(f"warning: {line}", err=True)


def _headline(version: dict[str, Any]) -> str:
    return (
        f"version {version['version']} ({version.get('preset') or 'no preset'}), {version.get('created_at')} "
        f"by {version.get('actor')}: {version.get('note') or 'no note'}"
    )
