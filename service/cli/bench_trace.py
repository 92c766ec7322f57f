"""`helios bench trace`: what the trace costs the tokens, on the simulated device."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import click

from service.cli.bench import machine
from service.cli.output import Command, fail, json_option, prepare_kernels, print_json, print_table, progress_bar
from service.load import faults
from service.load.errors import LoadError
from service.load.server import Options
from service.load.sink import SpanSink
from service.load.trace_cost import Plan, Way, measure, rows, traced_ways

COLUMNS = ("way", "tokens_per_s", "plans_per_s", "gap_p50_ms", "gap_p99_ms", "engine_us_per_plan")
RATIOS = {"throughput_ratio": "throughput", "gap_p99_ratio": "gap p99", "engine_ratio": "engine CPU"}


@click.command("trace", cls=Command, epilog="Example: helios bench trace --pairs 20 --seconds 3 --json")
@click.option("--pairs", type=click.IntRange(1), default=24, show_default=True, help="Rounds; each measures every way.")
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Of one way in one round, timed."
)
@click.option(
    "--rate", type=click.FloatRange(1.0), default=200.0, show_default=True, help="Plans a second that the device makes."
)
@click.option("--lanes", type=click.IntRange(1, 64), default=8, show_default=True, help="Requests that decode at once.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the order within the rounds.")
@click.option("--faults", "with_faults", is_flag=True, help="Compare faults behind the engine with none, all in SQL.")
@json_option
def trace(pairs: int, seconds: float, rate: float, lanes: int, seed: int, with_faults: bool, as_json: bool) -> None:
    """Serve on the simulated device with more and less tracing in turn, and compare throughput and gaps.

    Without tracing; with SQL alone; with everything (SQL and spans to a local collector); and with database and
    collector down. Ratios are to the first of these in the same round: the median and its 95 % interval by order
    statistics, which needs six pairs at least. Run it on a quiet machine; it takes PAIRS x 4 x (SECONDS + 1) seconds.
    """
    prepare_kernels()
    plan = Plan(rounds=pairs, window_s=seconds, warm_s=min(0.5, seconds), lanes=lanes, seed=seed)
    with SpanSink() as sink, tempfile.TemporaryDirectory(prefix="helios-bench-") as folder:
        ways = fault_ways(rate, lanes) if with_faults else traced_ways(rate, lanes, sink.url)
        try:
            with progress_bar("measuring", pairs * len(ways)) as show:
                samples = measure(ways, plan, pathlib.Path(folder), show)
        except LoadError as error:
            fail(str(error), 1)
    document = {
        "machine": machine(),
        "plan": {**dataclasses.asdict(plan), "rate": rate},
        "rows": rows(ways, samples),
        "rounds": [[dataclasses.asdict(sample) for sample in own] for own in samples],
    }
    if as_json:
        print_json(document)
    else:
        print_report(document)


def fault_ways(rate: float, lanes: int) -> tuple[Way, ...]:
    """No fault, and each of them, over SQLite."""
    options = Options(plans_per_s=rate, lanes=lanes)
    made = {
        "recorder killed": faults.recorder_killed,
        "write lock held": faults.foreign_lock,
        "reader stays open": faults.open_reader,
        "journal's disk full": faults.journal_disk_full,
    }
    down = traced_ways(rate, lanes, "")[-1]
    return (
        Way("no fault", options),
        *(Way(name, options, fault) for name, fault in made.items()),
        dataclasses.replace(down, name="database gone", options=dataclasses.replace(down.options, otlp_endpoint=None)),
    )


def print_report(document: dict[str, Any]) -> None:
    """Tables for people."""
    about = document["machine"]
    click.echo(f"{about['processor']}, {about['cores']} cores, Python {about['python']}")
    print_table(COLUMNS, document["rows"])
    click.echo(f"\nratios to “{document['rows'][0]['way']}” in the same round: median (95 % interval)")
    print_table(("way", *RATIOS.values()), [ratios(row) for row in document["rows"][1:]])


def ratios(row: dict[str, Any]) -> dict[str, str]:
    """A row's ratios as text."""
    return {"way": row["way"], **{title: _text(row[name]) for name, title in RATIOS.items()}}


def _text(ratio: dict[str, float | None]) -> str:
    interval: Sequence[float | None] = (ratio["low"], ratio["high"])
    if None in interval:
        return f"{ratio['median']} (too few pairs)"
    return f"{ratio['median']:.4f} ({interval[0]:.4f} to {interval[1]:.4f})"
