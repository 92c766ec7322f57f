"""`helios audit`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import click
import sqlalchemy as sa

from service.cli.output import Command, fail, json_option, prepare_kernels, print_json, progress_bar
from service.cli.trace_source import source_options, trace_source
from service.why.audit import Audit, Auditor
from service.why.errors import NotRecorded
from service.why.recorded import FenceRange, parse_range, ranges_between

_MOST_DETAILS = 12


class PlanRange(click.ParamType[FenceRange]):
    """RUN/A..B or RUN."""

    name = "run/a..b"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> FenceRange:
        try:
            return parse_range(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("audit", cls=Command, epilog="Example: helios audit 20261129T184605-506b02d6/1000..2000")
@click.argument("plans", type=PlanRange(), metavar="[RUN/A..B]", required=False)
@source_options
@click.option("--since", help="Plans committed from this time on, as in 2026-11-29T18:00:00Z; all runs.")
@click.option("--until", help="Plans committed before this time.")
@click.option("--limit", type=click.IntRange(1), help="Audit this many decisions at the most.")
@json_option
def audit(
    plans: FenceRange | None,
    database: str | None,
    data_dir: pathlib.Path | None,
    bundle: pathlib.Path | None,
    since: str | None,
    until: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Derive recorded decisions again with the scheduler and with its slow reference, and compare all three.

    RUN/A..B are fences of one run, both included; RUN is all of it; nothing is everything in the store. Exits 1 at the
    first difference, which it names. What cannot be re-executed is said, and is no difference.
    """
    if plans is not None and (since is not None or until is not None):
        fail("RUN/A..B and --since or --until are two ways to say what to audit; choose one")
    prepare_kernels()
    with trace_source(database, data_dir, bundle) as engine:
        found = _audited(engine, plans, since, until, limit)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        click.echo("\n".join(_lines(found)))
    if found.difference is not None:
        raise click.exceptions.Exit(1)


def _audited(
    engine: sa.Engine, wanted: FenceRange | None, since: str | None, until: str | None, limit: int | None
) -> Audit:
    ranges = ranges_between(engine, since, until)
    if wanted is not None:
        ranges = [(wanted, count) for of_run, count in ranges if of_run.run_id == wanted.run_id]
    if not ranges:
        raise NotRecorded("there is no plan of this run or time; helios sql lists runs: SELECT * FROM engine_runs")
    total = sum(min(count, one.last - one.first + 1) for one, count in ranges)
    with progress_bar("auditing", total if limit is None else min(total, limit)) as told:
        auditor = Auditor(engine, limit, told)
        for one, _ in ranges:
            if not auditor.over:
                auditor.run(one)
    return auditor.found


def _lines(found: Audit) -> list[str]:
    lines = [
        f"skipped {one.run_id}/{one.first_fence}..{'' if one.last_fence is None else one.last_fence}: {one.why}"
        for one in found.skipped
    ]
    if found.unrecorded:
        lines.append(f"{found.unrecorded} decisions are in the log alone: there are no rows of these plans")
    checked = f"{found.decisions} decisions, {found.checkpoints} checkpoints"
    if found.difference is None and found.decisions == 0:
        return [*lines, f"{checked}: no plan's rows were compared"]
    if found.difference is None:
        return [*lines, f"{checked}: the rows, the scheduler and its reference agree"]
    first = found.difference
    return [
        *lines,
        f"{checked} agree; then {first.run_id}/{first.fence}: {first.between} differ",
        *(f"  {line}" for line in first.details[:_MOST_DETAILS]),
    ]
