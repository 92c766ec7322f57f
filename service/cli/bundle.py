"""`helios bundle`."""

from __future__ import annotations

import pathlib

import click

from service.cli.database import store_options
from service.cli.explain import PlanName, explained_plan
from service.cli.output import Command, json_option, prepare_kernels, print_json
from service.cli.trace_source import trace_source
from service.why.bundle import bundle_members, write_bundle
from service.why.recorded import FenceName
from service.why.wording import explained, replay_lines


@click.command(
    "bundle", cls=Command, epilog="Example: helios bundle --around 20261129T184605-506b02d6/1042 --out bug.zip"
)
@click.option("--around", "plan", type=PlanName(), metavar="RUN/FENCE", required=True, help="The plan it is about.")
@click.option("--out", type=click.Path(path_type=pathlib.Path), required=True, help="The zip to write; a new file.")
@click.option("--fences", type=click.IntRange(0, 10_000), default=20, show_default=True, help="Plans on either side.")
@store_options
@json_option
def bundle(
    plan: FenceName,
    out: pathlib.Path,
    fences: int,
    database: str | None,
    data_dir: pathlib.Path | None,
    as_json: bool,
) -> None:
    """Write one zip about a recorded plan for a bug report, without prompts, outputs, token ids or credentials.

    It holds the rows around the plan, the decision log from the checkpoint before them, settings, versions, the
    catalog and what helios explain says. helios explain and helios audit read it with --bundle.
    """
    prepare_kernels()
    with trace_source(database, data_dir) as engine:
        found = explained_plan(engine, plan)
        members = bundle_members(engine, plan, fences, found, explained(found))
        write_bundle(out, members)
    size = out.stat().st_size
    if as_json:
        print_json({"path": str(out), "bytes": size, "members": sorted(members), "replay": found.replay.result})
    else:
        click.echo("\n".join([f"{out}: {len(members)} members, {size} bytes", *replay_lines(found.replay)]))
