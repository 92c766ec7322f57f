"""The command tree. Wrong usage and a user's mistakes end with one line and exit 2, never with a traceback."""

from __future__ import annotations

import click

from service.cli.database import database
from service.cli.journal import journal
from service.cli.output import VERSION
from service.cli.policy import policy
from service.cli.serve import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="helios")
def main() -> None:
    """Helios: a language-model server whose every scheduling decision can be seen, queried and steered.

    Example: helios serve --port 8123
    """


main.add_command(serve)
main.add_command(database)
main.add_command(journal)
main.add_command(policy)
