"""`helios simulate --from-database`: recorded traffic under a policy, instead of files of arrivals and durations."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from scheduler.policy import PolicyConfig
from scheduler.simulation.errors import SimulationError
from service.cli.output import Function, fail, prepare_kernels, print_table, progress_bar
from service.cli.preview_report import figure_rows
from service.cli.simulate_report import policy_words
from service.control.errors import ControlError
from service.control.preview.observed import errors_between, figures_of
from service.control.preview.replay import machine_of, read_window, replay
from service.control.preview.window import choose
from service.control.preview.words import CLOSED_LOOP
from service.store.engines import open_database, parse_url
from service.store.errors import StoreError
from service.store.faults import shown
from service.store.filters import time_range

ALLOWED = frozenset({"from_database", "since", "until", "run_id", "policy", "newcomer_memory", "seed", "as_json"})
STEPS = 1000
DEFAULT_MINUTES = 10.0


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which recorded traffic."""

    run_id: str | None
    minutes: float
    until: dt.datetime | None


def recorded_options(function: Function) -> Function:
    """Where recorded traffic is read, and how much of it."""
    for option in reversed(
        (
            click.option("--from-database", metavar="URL", help="Replay recorded traffic, in place of --arrivals."),
            click.option("--since", metavar="TIME", help="Its beginning, RFC 3339.  [default: 10 minutes before]"),
            click.option("--until", metavar="TIME", help="Its end.  [default: the newest recorded plan]"),
            click.option("--run", "run_id", help="Whose traffic.  [default: of the run that planned last]"),
        )
    ):
        function = option(function)
    return function


def check_options(from_database: str | None) -> None:
    """Raises SimulationError for options of the other kind of input."""
    context = click.get_current_context()
    given = {
        option.name: option.opts[0]
        for option in context.command.params
        if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    }
    if from_database is None:
        for name in ("since", "until", "run_id"):
            if name in given:
                raise SimulationError(f"{given[name]} is about recorded traffic, which needs --from-database URL")
        for name in ("arrivals", "catalog"):
            if name not in given:
                raise SimulationError(f"--{name} FILE is needed, or --from-database URL for recorded traffic")
        return
    other = sorted(option for name, option in given.items() if name not in ALLOWED)
    if other:
        raise SimulationError(
            f"{', '.join(other)}: recorded traffic says this itself; leave it out beside --from-database"
        )


def simulate_recorded(
    from_database: str, since: str | None, until: str | None, run_id: str | None, policy: PolicyConfig, seed: int
) -> dict[str, Any]:
    """The figures as a JSON document. Ends the command where the store or the window cannot be used."""
    try:
        wanted = _wanted(since, until, run_id)
        url = parse_url(from_database)
        engine = open_database(url, readonly=True)
        prepare_kernels()
        with progress_bar("simulating", STEPS) as show:
            chosen = choose(engine, wanted, 1)
            recordings, costs = read_window(engine, chosen, lambda _share, _words: None)
            machine = machine_of(engine, chosen, recordings, costs)
            done = replay(recordings, machine, policy, seed, lambda share: show(round(STEPS * share)))
    except (StoreError, ControlError) as error:
        fail(str(error))
    recorded = figures_of([recording.seen for recording in recordings])
    return {
        "inputs": {
            "database": shown(url),
            "run_id": chosen.run.run_id,
            "since": chosen.since.isoformat(),
            "until": chosen.until.isoformat(),
            "policy": policy.as_dict(),
            "seed": seed,
        },
        "sampled": None if chosen.sampled is None else msgspec.to_builtins(chosen.sampled),
        "recorded": msgspec.to_builtins(recorded),
        "results": msgspec.to_builtins(done.figures),
        "against_recorded": [msgspec.to_builtins(error) for error in errors_between(recorded, done.figures)],
    }


def _wanted(since: str | None, until: str | None, run_id: str | None) -> Wanted:
    first, last = time_range(since, until)
    if first is None:
        return Wanted(run_id, DEFAULT_MINUTES, last)
    end = last or dt.datetime.now(dt.UTC)
    return Wanted(run_id, max(0.001, (end - first).total_seconds() / 60), last)


def print_recorded(document: dict[str, Any]) -> None:
    """The figures for people."""
    inputs = document["inputs"]
    click.echo(f"run {inputs['run_id']}, {inputs['since']} to {inputs['until']}")
    click.echo(f"simulated under the policy {policy_words(inputs['policy'])}, seed {inputs['seed']}\n")
    columns = ("", "happened", "simulated")
    print_table(columns, figure_rows(dict(zip(columns[1:], (document["recorded"], document["results"]), strict=True))))
    for sentence in filter(None, ((document["sampled"] or {}).get("words"), CLOSED_LOOP)):
        click.echo(sentence)
