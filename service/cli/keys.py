"""`helios keys add|list|revoke`: who may use a server that is started with the same `--credentials-file`."""

from __future__ import annotations

import datetime as dt
import pathlib

import click

from service.cli.output import Function, Group, fail, json_option, print_json, print_table
from service.credentials.caller import Role
from service.credentials.errors import CredentialsError
from service.credentials.files import Credential, add_credential, read_credentials, revoke_credential

MOST_DAYS = 36_500
COLUMNS = ["name", "role", "id", "created_at", "expires_at", "state"]
ROLES_TEXT = "client: /v1 only; viewer: reads; operator: reads and changes."


def file_option(function: Function) -> Function:
    """`--credentials-file`."""
    return click.option(
        "--credentials-file",
        "path",
        required=True,
        type=click.Path(dir_okay=False, path_type=pathlib.Path),
        help="The file that helios serve is started with.",
    )(function)


@click.group("keys", cls=Group)
def keys() -> None:
    """Keys of a server with --credentials-file. It takes a change over with the next request, without a restart.

    Example: helios keys add --credentials-file credentials.json --name ann --role operator
    """


@keys.command("add", epilog="Example: helios keys add --credentials-file credentials.json --name app --role client")
@file_option
@click.option("--name", required=True, help="Who; changes of the policy carry this name.")
@click.option("--role", required=True, type=click.Choice([role.value for role in Role]), help=ROLES_TEXT)
@click.option("--expires-days", type=click.IntRange(1, MOST_DAYS), help="Days until it ends.  [default: never]")
@json_option
def add(path: pathlib.Path, name: str, role: str, expires_days: int | None, as_json: bool) -> None:
    """Make a key and print it, this once: the file keeps a hash of it. Makes the file at the first one."""
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    until = None if expires_days is None else now + dt.timedelta(days=expires_days)
    try:
        added, key = add_credential(path, name, Role(role), now, until)
    except CredentialsError as error:
        fail(str(error))
    if as_json:
        print_json({**_row(added), "key": key})
        return
    click.echo(key)
    click.echo(f"this key of {added.name} ({added.role}) is shown once and kept nowhere; hand it over safely", err=True)


@keys.command("list", epilog="Example: helios keys list --credentials-file credentials.json --json")
@file_option
@json_option
def list_keys(path: pathlib.Path, as_json: bool) -> None:
    """Who has a key, with which role and until when."""
    try:
        rows = [_row(one) for one in read_credentials(path).credentials]
    except CredentialsError as error:
        fail(str(error))
    if as_json:
        print_json({"items": rows})
    else:
        print_table(COLUMNS, rows)


@keys.command("revoke", epilog="Example: helios keys revoke --credentials-file credentials.json --name ann")
@file_option
@click.option("--name", required=True, help="Whose key, and whose sessions in browsers, end.")
@json_option
def revoke(path: pathlib.Path, name: str, as_json: bool) -> None:
    """Take a key out of the file. Its next request is refused; answers that are being sent go on to their end."""
    try:
        gone = revoke_credential(path, name)
    except CredentialsError as error:
        fail(str(error))
    if as_json:
        print_json({**_row(gone), "state": "revoked"})
    else:
        click.echo(f"{gone.name} ({gone.role}) may no longer enter")


def _row(one: Credential) -> dict[str, object]:
    """What is shown of a credential: neither salt nor digest."""
    state = "valid" if one.is_valid(dt.datetime.now(dt.UTC)) else "expired"
    return {"name": one.name, "role": str(one.role), "id": one.id, "created_at": one.created_at,
            "expires_at": one.expires_at, "state": state}  # fmt: skip
