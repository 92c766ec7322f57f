"""The command tree. Wrong usage and a user's mistakes end with one line and exit 2, never with a traceback."""

from __future__ import annotations

from typing import Any

import click

from service.cli.deferred import DeferredCommands
from service.cli.output import VERSION, Group, WrongUsage

COMMANDS = {
    "serve": ("serve", "serve"),
    "simulate": ("simulate", "simulate"),
    "bench": ("bench", "bench"),
    "selfcheck": ("selfcheck", "selfcheck"),
    "db": ("database", "database"),
    "journal": ("journal", "journal"),
    "policy": ("policy", "policy"),
    "keys": ("keys", "keys"),
    "sql": ("sql", "sql"),
    "explain": ("explain", "explain_command"),
    "audit": ("audit", "audit"),
    "bundle": ("bundle", "bundle"),
}


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


@click.group(
    cls=Root,
    commands=DeferredCommands(COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(VERSION, prog_name="helios")
def main() -> None:
    """Helios: a language-model server whose every scheduling decision can be seen, queried and steered.

    Example: helios serve --port 8123
    """
