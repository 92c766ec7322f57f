"""The command tree. Wrong usage and a user's mistakes end with one line and exit 2, never with a traceback."""

from __future__ import annotations

from typing import Any

import click

from service.cli.audit import audit
from service.cli.bench import bench
from service.cli.bench_dashboard import dashboard
from service.cli.bench_trace import trace
from service.cli.bundle import bundle
from service.cli.database import database
from service.cli.explain import explain_command
from service.cli.journal import journal
from service.cli.keys import keys
from service.cli.output import VERSION, Group, WrongUsage
from service.cli.policy import policy
from service.cli.policy_guard import guard
from service.cli.preview import preview_command
from service.cli.selfcheck import selfcheck
from service.cli.serve import serve
from service.cli.simulate import simulate
from service.cli.sql import sql


class Root(Group):
    """Says wrong usage, its own and that of every command below it, in one line."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            raise WrongUsage(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise WrongUsage(error) from error


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="helios")
def main() -> None:
    """Helios: a language-model server whose every scheduling decision can be seen, queried and steered.

    Example: helios serve --port 8123
    """


main.add_command(serve)
main.add_command(simulate)
bench.add_command(trace)
bench.add_command(dashboard)
main.add_command(bench)
main.add_command(selfcheck)
main.add_command(database)
main.add_command(journal)
policy.add_command(preview_command)
policy.add_command(guard)
main.add_command(policy)
main.add_command(keys)
main.add_command(sql)
main.add_command(explain_command)
main.add_command(audit)
main.add_command(bundle)
