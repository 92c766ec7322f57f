"""`helios explain`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import click
import sqlalchemy as sa

from service.cli.output import VERSION, Command, json_option, prepare_kernels, print_json, progress_bar
from service.cli.trace_source import source_options, trace_source
from service.why.explanation import Explanation, explain
from service.why.recorded import FenceName, parse_name
from service.why.replays import decisions_to_replay
from service.why.stored_log import StoredLog
from service.why.wording import explained


class PlanName(click.ParamType[FenceName]):
    """RUN/FENCE."""

    name = "run/fence"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> FenceName:
        try:
            return parse_name(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def explained_plan(engine: sa.Engine, plan: FenceName) -> Explanation:
    """The explanation, with a bar while its decision is replayed from far back."""
    with progress_bar("replaying", decisions_to_replay(StoredLog(engine, plan.run_id), plan.fence)) as told:
        return explain(engine, plan, VERSION, told)


@click.command("explain", cls=Command, epilog="Example: helios explain 20261129T184605-506b02d6/1042")
@click.argument("plan", type=PlanName(), metavar="RUN/FENCE")
@source_options
@json_option
def explain_command(
    plan: FenceName,
    database: str | None,
    data_dir: pathlib.Path | None,
    bundle: pathlib.Path | None,
    as_json: bool,
) -> None:
    """Say why a recorded plan was chosen, and execute its decision again.

    The parts of its score, the runner-ups and what each lost by, what was barred and why, its lanes, the ledgers, its
    predicted and observed duration, and whether the decision comes out the same from the decision log.
    """
    prepare_kernels()
    with trace_source(database, data_dir, bundle) as engine:
        found = explained_plan(engine, plan)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        click.echo("\n".join(explained(found)))
