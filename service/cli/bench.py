"""`helios bench plan`: how long the scheduler takes to decide."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import platform
from collections.abc import Iterable, Sequence
from typing import Any

import click

from scheduler.shapes import Allocation
from service.cli.bench_rounds import Case, Measured, Rounds, median_us, round_shapes
from service.cli.deferred import DeferredCommands
from service.cli.output import Group, json_option, prepare_kernels, print_json, print_table, progress_bar

PUBLISHED_US = {
    ("device", False): {8: 60, 16: 96, 32: 196, 64: 436},
    ("device", True): {8: 111, 16: 201, 32: 413, 64: 943},
    ("host", False): {32: 250, 64: 615},
    ("host", True): {32: 497, 64: 1215},
}
"""Medians published for another implementation on another machine, with the same catalog and one round queued."""

DEFERRED = {"trace": ("bench_trace", "trace"), "dashboard": ("bench_dashboard", "dashboard")}
SIZES = (8, 16, 32, 64)
GROWTH_SIZES = (64, 128, 256)
ROW = ("allocation", "requests", "probe", "median_us", "p99_us", "plans", "distinct_plans", "candidates")


@click.group(cls=Group, commands=DeferredCommands(DEFERRED))
def bench() -> None:
    """Measure parts of Helios on this machine.

    Example: helios bench plan
    """


@bench.command(epilog="Example: helios bench plan --requests 8 --requests 64 --json")
@click.option("--plans", type=click.IntRange(1), default=2000, show_default=True, help="Timed plans per row.")
@click.option(
    "--requests",
    type=click.IntRange(1, 4096),
    multiple=True,
    default=SIZES,
    show_default=True,
    help="Decoding requests.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of acceptance and durations.")
@click.option("--growth/--no-growth", default=True, show_default=True, help="Also 128 and 256 requests.")
@json_option
def plan(plans: int, requests: tuple[int, ...], seed: int, growth: bool, as_json: bool) -> None:
    """Time planning with one round in flight: decoding requests, 25 speculative graphs, seven prefill graphs.

    Allocations by host and device, without and with a funded acceptance probe. Each row: so many calls, with commit,
    completion and publication before each; fewer where probes are rare. Ratios compare with figures published for
    another machine.
    """
    sizes = dict.fromkeys(requests)
    cases = [Case(a, n, probe) for a in ("device", "host") for probe in (False, True) for n in sizes]
    more = [Case(a, n, False) for a in ("device", "host") for n in GROWTH_SIZES if growth]
    prepare_kernels()
    timed = itertools.count(1)
    with progress_bar("planning", plans * len({*cases, *more})) as show:
        measured = {
            case: Rounds(case, seed).measure(plans, lambda: show(next(timed)))
            for case in dict.fromkeys([*cases, *more])
        }
    document = {
        "machine": machine(),
        "graphs": len(round_shapes(Allocation.DEVICE)),
        "rows": [measured[case].row() for case in cases],
        "settle": settle_rows(measured.values()),
        "growth": growth_rows([measured[case] for case in measured if not case.probe]),
    }
    if as_json:
        print_json(document)
    else:
        print_report(document)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"processor": processor_name(), "cores": os.cpu_count(), "python": platform.python_version()}


def processor_name() -> str:
    """The processor's own name where Linux tells it."""
    with contextlib.suppress(OSError), pathlib.Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def settle_rows(measured: Iterable[Measured]) -> list[dict[str, Any]]:
    """Commit, complete and publish together, of rounds that hold every request (64 at most)."""
    return [
        {
            "allocation": m.case.allocation,
            "requests": m.case.requests,
            "median_us": median_us(m.settle_ns),
            "rounds": len(m.settle_ns),
        }
        for m in measured
        if m.settle_ns and not m.case.probe
    ]


def growth_rows(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Microseconds per further request, from each size to the next of the same allocation."""
    found = []
    for before, after in itertools.pairwise(sorted(measured, key=lambda m: (m.case.allocation, m.case.requests))):
        low, high = median_us(before.plan_ns), median_us(after.plan_ns)
        if before.case.allocation != after.case.allocation or low is None or high is None:
            continue
        sizes = {"from": before.case.requests, "to": after.case.requests}
        rise = round((high - low) / (sizes["to"] - sizes["from"]), 2)
        found.append({"allocation": after.case.allocation, **sizes, "median_us": high, "us_per_request": rise})
    return found


def print_report(document: dict[str, Any]) -> None:
    """Tables for people."""
    about = document["machine"]
    click.echo(f"{about['processor']}, {about['cores']} cores, Python {about['python']}")
    click.echo(f"{document['graphs']} speculative graphs")
    rows = [dict(row) for row in document["rows"]]
    for row in rows:
        row["published_us"] = published = PUBLISHED_US[row["allocation"], row["probe"]].get(row["requests"])
        row["ratio"] = round(row["median_us"] / published, 2) if published and row["median_us"] else None
        row["probe"] = "yes" if row["probe"] else "no"
    print_table((*ROW, "published_us", "ratio"), rows)
    click.echo("\npublished_us: another implementation on another machine.")
    click.echo("\ncommit, complete and publish together, of rounds that hold every request (64 at most):")
    print_table(("allocation", "requests", "median_us", "rounds"), document["settle"])
    click.echo("\ngrowth:")
    print_table(("allocation", "from", "to", "median_us", "us_per_request"), document["growth"])
