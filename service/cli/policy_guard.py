"""`helios policy guard open|status|end`: a change on trial, taken back by itself when it breaks a limit."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from service.cli.control import call
from service.cli.output import Function, Group, fail, json_option, print_json, print_table, progress_bar
from service.cli.policy import change_options, parse_changes, server_option, user_name
from service.cli.values import PresetType
from service.control.guards import DEFAULT_MINUTES, LEAST_MINUTES, MOST_MINUTES, UNITS

PATH = "/api/policy/guard"
POLL_S = 1.0
_LIMIT = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>x|ms|/s)")


class LimitText(click.ParamType[Any]):
    """A ratio to the hour before (1.1x), an absolute value (500ms, 300/s), or off."""

    name = "limit"

    def __init__(self, unit: str) -> None:
        self._unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The limit as the API takes it, None for off."""
        if not isinstance(value, str) or value == "off":
            return None if value == "off" else value
        found = _LIMIT.fullmatch(value)
        if found is None or found["unit"] not in ("x", self._unit):
            self.fail(f"{value!r} is not a ratio such as 1.1x, a value such as 500{self._unit}, or off", param, ctx)
        return {"ratio" if found["unit"] == "x" else "absolute": float(found["number"])}


def _limit_options(function: Function) -> Function:
    samples = "How many samples each limit needs.  [default: 100 requests, 1000 gaps, 100 plans]"
    function = click.option("--samples", type=click.IntRange(1), help=samples)(function)
    for name, unit, default, what in (
        ("throughput", "/s", "0.95x", "Output tokens per second that the device is busy, at least."),
        ("inter-token-p99", "ms", "1.1x", "99th percentile of the time between a request's tokens, at most."),
        ("first-token-p99", "ms", "1.1x", "99th percentile of the time to the first token, at most."),
    ):
        text = f"{what} A ratio to the hour before, a value such as 500{unit}, or off."
        function = click.option(f"--{name}", type=LimitText(unit), default=default, show_default=True, help=text)(
            function
        )
    return function


@click.group("guard", cls=Group)
def guard() -> None:
    """A change on trial: watched for some minutes, and taken back by itself when it breaks a limit.

    Example: helios policy guard open decode_age_price=0.2 --minutes 10 --wait
    """


@guard.command("open", epilog="Example: helios policy guard open terminal_value=512 --first-token-p99 1.2x --wait")
@click.argument("given", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--preset", type=PresetType(), help="Start from this preset, then apply the changes.")
@click.option(
    "--minutes",
    type=click.FloatRange(LEAST_MINUTES, MOST_MINUTES),
    default=DEFAULT_MINUTES,
    show_default=True,
    help="How long it is watched.",
)
@_limit_options
@click.option("--end-guard", is_flag=True, help="Also when a guard watches already: end that one.")
@click.option("--wait", is_flag=True, help="Wait for the decision; exit 1 when the change was taken back.")
@change_options
@server_option
@json_option
def open_guard(
    given: tuple[str, ...], preset: str | None, minutes: float, first_token_p99: Any, inter_token_p99: Any,
    throughput: Any, samples: int | None, end_guard: bool, wait: bool, if_version: int | None, actor: str, note: str,
    server: str, as_json: bool,
) -> None:  # fmt: skip
    """Change coefficients on trial. Compares with the hour before the change."""
    coefficients = parse_changes(given)
    if not coefficients and preset is None:
        raise click.UsageError("nothing to change; give NAME=VALUE or --preset")
    limits = {"first_token_p99": first_token_p99, "inter_token_p99": inter_token_p99, "throughput": throughput}
    if samples is not None:
        limits = {name: None if limit is None else {**limit, "samples": samples} for name, limit in limits.items()}
    body: dict[str, Any] = {"coefficients": coefficients, "actor": actor, "note": note}
    body |= {"minutes": minutes, "limits": limits, "end_guard": end_guard}
    if preset is not None:
        body["preset"] = preset
    version = if_version or call(server, "GET", "/api/policy")["version"]
    _show(_awaited(server, call(server, "POST", PATH, body=body, version=version), wait), as_json)


@guard.command("status", epilog="Example: helios policy guard status --wait")
@click.option("--limit", type=click.IntRange(1, 100), default=5, show_default=True, help="How many decided ones.")
@click.option("--wait", is_flag=True, help="Wait for the decision of the one that watches.")
@server_option
@json_option
def status(limit: int, wait: bool, server: str, as_json: bool) -> None:
    """The guard that watches, with the evidence so far, and the last ones."""
    answer = call(server, "GET", PATH, limit=limit)
    if wait and answer["watching"] is not None:
        _show(_awaited(server, answer["watching"], wait=True), as_json)
        return
    if as_json:
        print_json(answer)
        return
    if answer["watching"] is None:
        click.echo("no guard watches")
    else:
        _print(answer["watching"])
    print_table(
        ["version", "state", "actor", "opened_at", "reason"],
        [item for item in answer["items"] if item["state"] != "watching"],
    )


@guard.command("end", epilog="Example: helios policy guard end --rollback")
@click.option("--rollback", is_flag=True, help="Take the version back; without it the version stays.")
@click.option("--if-version", type=click.IntRange(1), help="Refuse unless this version is watched.")
@click.option("--actor", default=user_name, show_default="your user name", help="Who.")
@click.option("--note", default="", help="Why; kept with the guard.")
@server_option
@json_option
def end(rollback: bool, if_version: int | None, actor: str, note: str, server: str, as_json: bool) -> None:
    """End the guard that watches. Its version stays in force, or is taken back."""
    version = if_version
    if version is None:
        watching = call(server, "GET", PATH, limit=1)["watching"]
        if watching is None:
            fail("no guard watches", 1)
        version = watching["version"]
    query = {"rollback": "true" if rollback else "false", "actor": actor, "note": note}
    ended = call(server, "DELETE", PATH, version=version, **query)
    if as_json:
        print_json(ended)
    else:
        click.echo(_headline(ended))


def _awaited(server: str, watched: dict[str, Any], wait: bool) -> dict[str, Any]:
    """The guard, once it is decided if `wait`."""
    if not wait:
        return watched
    version, seconds = watched["version"], max(1, round(60 * watched["minutes"]))
    with progress_bar(f"version {version} on trial, seconds", seconds) as told:
        while watched["state"] == "watching":
            time.sleep(POLL_S)
            items = call(server, "GET", PATH, limit=100)["items"]
            watched = next((item for item in items if item["version"] == version), watched)
            told(min(seconds, round(watched["evidence"]["watched_s"])))
    return watched


def _show(found: dict[str, Any], as_json: bool) -> None:
    """Prints it; exit 1 when it was taken back."""
    if as_json:
        print_json(found)
    else:
        _print(found)
    if found["state"] == "rolled_back":
        raise click.exceptions.Exit(1)


def _print(found: dict[str, Any]) -> None:
    click.echo(_headline(found))
    rows = [{**check, "unit": UNITS.get(check["name"], ""), **_rounded(check)} for check in found["evidence"]["checks"]]
    print_table(
        ["limit", "bound", "hour before", "samples then", "now", "samples", "needed", "unit", "verdict"],
        rows,
        keys=["name", "bound", "before", "before_samples", "value", "samples", "needed", "unit", "verdict"],
    )
    for problem in found["evidence"]["problems"]:
        click.echo(f"  against deciding: {problem}")


def _rounded(check: dict[str, Any]) -> dict[str, str | None]:
    names = ("bound", "before", "value")
    return {name: None if check[name] is None else f"{check[name]:.4g}" for name in names}


def _headline(found: dict[str, Any]) -> str:
    since = f"version {found['version']} by {found['actor']}, on trial since {found['opened_at']}"
    if found["state"] == "watching":
        return f"{since} until {found['ends_at']}; {found['evidence']['watched_s']:.0f} s watched"
    return f"{since}: {found['state'].replace('_', ' ')}; {found['reason']}"
