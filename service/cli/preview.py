"""`helios policy preview`: what a draft would have done with the traffic of the last minutes, from a shell."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from scheduler.policy import COEFFICIENT_BY_NAME
from service.cli.control import call
from service.cli.output import Command, fail, json_option, print_json, progress_bar
from service.cli.policy import parse_changes, server_option, user_name
from service.cli.preview_report import print_preview
from service.cli.values import FiniteRange, PresetType, coefficient_value
from service.control.preview.asking import SHORTEST_MINUTES
from service.control.preview.messages import MOST_MINUTES

PATH = "/api/policy/preview"
POLL_S = 0.3
STEPS = 1000


@click.command(
    "preview",
    cls=Command,
    epilog="Example: helios policy preview --set decode_age_price=0.5 --minutes 30 --sweep decode_age_price=0.1,0.5,1",
)
@click.option(
    "--set", "given", multiple=True, metavar="NAME=VALUE", help="Change a coefficient in the draft. Repeatable."
)
@click.option("--preset", type=PresetType(), help="Start the draft from this preset.")
@click.option(
    "--minutes", type=FiniteRange(SHORTEST_MINUTES, MOST_MINUTES), default=10.0, show_default=True,
    help="How much recorded traffic to replay.",
)  # fmt: skip
@click.option("--until", metavar="TIME", help="End of that traffic, RFC 3339.  [default: the newest recorded plan]")
@click.option("--run", "run_id", help="Whose traffic.  [default: of the run that planned last]")
@click.option(
    "--sweep", multiple=True, metavar="NAME=A,B,C", help="Replay the draft with each of these values; at most twice."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of the simulator's luck."
)
@server_option
@json_option
def preview_command(
    given: tuple[str, ...], preset: str | None, minutes: float, until: str | None, run_id: str | None,
    sweep: tuple[str, ...], seed: int, server: str, as_json: bool,
) -> None:  # fmt: skip
    """Replay recorded traffic under the policy in force and under a draft, and compare. Nothing is changed.

    The server does it in a process of its own with the lowest priority; Ctrl-C cancels it.
    """
    body: dict[str, Any] = {
        "coefficients": parse_changes(given),
        "minutes": minutes,
        "seed": seed,
        "actor": user_name(),
        **{name: value for name, value in (("preset", preset), ("until", until), ("run", run_id)) if value is not None},
    }
    if sweep:
        body["sweep"] = parse_sweep(sweep)
    if not given and preset is None and not sweep:
        raise click.UsageError("there is no draft; give --set NAME=VALUE, --preset or --sweep")
    started = call(server, "POST", PATH, body=body)
    with progress_bar("previewing", STEPS) as show:
        status = _followed(server, started, show)
    if status["state"] != "done":
        fail(f"the preview ended without a result: {status['message']}", 1)
    if as_json:
        print_json(status)
    else:
        print_preview(status)


def parse_sweep(given: tuple[str, ...]) -> dict[str, list[Any]]:
    """Axes from NAME=A,B,C texts. Raises click.UsageError for every problem at once."""
    found: dict[str, list[Any]] = {}
    problems = []
    for text in given:
        name, equals, values = text.partition("=")
        known = COEFFICIENT_BY_NAME.get(name)
        if not equals or known is None:
            problems.append(f"{text!r} is not NAME=A,B,C with one of {', '.join(COEFFICIENT_BY_NAME)}")
            continue
        if name in found:
            problems.append(f"{name} is given twice")
        found[name] = [coefficient_value(name, value.strip()) for value in values.split(",")]
        problems += [f"{name} {why}" for value in found[name] if (why := known.problem(value)) is not None]
    if problems:
        raise click.UsageError("; ".join(problems))
    return found


def _followed(server: str, status: dict[str, Any], show: Callable[[int], None]) -> dict[str, Any]:
    """Asks until it has ended. An interrupt cancels it."""
    path = f"{PATH}/{status['id']}"
    try:
        while not status["ended"]:
            show(round(STEPS * status["progress"]))
            time.sleep(POLL_S)
            status = call(server, "GET", path)
    except KeyboardInterrupt:
        call(server, "DELETE", path)
        fail("cancelled", 1)
    show(STEPS)
    return status
