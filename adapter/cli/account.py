"""``markpost account``: register addresses, set passwords, remove accounts."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from adapter.accounts import credentials as password_rules
from adapter.accounts.credentials import Credentials
from adapter.cli.failures import CommandError
from adapter.cli.options import is_terminal, open_store, plural, read_password, root_option, size
from adapter.store import names
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.operations.registration import DeregisterMode, RegisterMode
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.smtp.paths import parse_path

_password_option = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")


@click.group(short_help="Manage addresses, mailboxes and passwords.")
def account() -> None:
    """Register addresses, set their passwords, remove them."""


@account.command(short_help="Register an address.")
@click.argument("address")
@root_option
@_password_option
@click.option(
    "--mode",
    type=click.Choice(["safe", "force", "stash"]),
    default="safe",
    show_default=True,
    help="If the address is registered: refuse; reuse its mailbox; set its mailbox aside and create an empty one.",
)
def add(address: str, root: str, password_stdin: bool, mode: RegisterMode) -> None:
    """Register ADDRESS with its folders and an optional password."""
    _check_syntax(address)
    address = names.normalise_address(address)
    with open_store(root) as transport, Credentials.open(transport) as credentials:
        if mode == "safe" and address in _addresses(transport, "active"):
            raise MailError(Reason.ADDRESS_EXISTS, address)
        password = read_password(password_stdin)
        if password is not None:
            password_rules.check(address, password)
        transport.run(op.Register(address, mode))
        if password is not None:
            credentials.set_password(address, password)
            click.echo(f"{address}: registered, password set")
        elif address in credentials.list():
            click.echo(f"{address}: registered, keeps its password")
        else:
            click.echo(f"{address}: registered without a password; set one with markpost account passwd")


def _check_syntax(address: str) -> None:
    """Refuse an address that SMTP cannot express: its mailbox could never receive mail."""
    if "@" in address and parse_path(f"<{address.rstrip('.')}>") is None:
        raise CommandError(f"not an address: {address!r}; quote a local part that contains a space or @")


@account.command()
@click.argument("address")
@root_option
@_password_option
def passwd(address: str, root: str, password_stdin: bool) -> None:
    """Set the password of ADDRESS."""
    address = names.normalise_address(address)
    with open_store(root) as transport, Credentials.open(transport) as credentials:
        with transport.reading() as connection:
            mailboxes.active_registration(connection, address)
        password = read_password(password_stdin)
        if password is None:
            raise CommandError("no terminal to ask for the password: pass it with --password-stdin")
        credentials.set_password(address, password)
    click.echo(f"{address}: password set")


@account.command()
@click.argument("address")
@root_option
@click.option(
    "--mode",
    type=click.Choice(["deactivate", "stash", "purge"]),
    default="deactivate",
    show_default=True,
    help="Keep the mail in place; set it aside; delete it permanently.",
)
@click.option("--yes", is_flag=True, help="Purge without confirmation.")
def remove(address: str, root: str, mode: DeregisterMode, yes: bool) -> None:
    """Deregister ADDRESS and delete its password."""
    address = names.normalise_address(address)
    with open_store(root) as transport, Credentials.open(transport) as credentials:
        statuses = ("active",) if mode == "deactivate" else ("active", "inactive")
        if address not in _addresses(transport, *statuses):
            raise MailError(Reason.NO_SUCH_ADDRESS, address)
        if mode == "purge" and not yes:
            if not is_terminal():
                raise CommandError("purge permanently deletes this account's mail; confirm with --yes")
            click.confirm(f"Permanently delete all mail of {address}?", abort=True, err=True)
        # Password first: an address that is registered again must not have an old password.
        credentials.remove(address)
        transport.run(op.Deregister(address, mode))
    outcomes = {
        "deactivate": "deactivated; its mail stays, markpost account add reactivates it",
        "stash": "deregistered, its mailbox is set aside",
        "purge": "deregistered, its mail is deleted",
    }
    click.echo(f"{address}: {outcomes[mode]}")


@account.command(name="list")
@root_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_(root: str, as_json: bool) -> None:
    """List the registered addresses, stashed ones included."""
    with open_store(root) as transport, Credentials.open(transport) as credentials:
        accounts = _describe(transport, set(credentials.list()))
    if as_json:
        click.echo(json.dumps(accounts, indent=2, ensure_ascii=False))
        return
    if not accounts:
        click.echo("no address is registered: add one with markpost account add", err=True)
    width = max((len(each["address"]) for each in accounts), default=0)
    for each in accounts:
        note = "" if each["password"] or each["status"] != "active" else "  no password"
        counts = f"{plural(each['messages'], 'message'):>16} {size(each['octets']):>8}"
        click.echo(f"{each['address']:{width}}  {each['status']:8} {counts}{note}")


def _describe(transport: Transport, addresses_with_password: set[str]) -> list[dict[str, Any]]:
    accounts = []
    with transport.reading() as connection:
        for registration in mailboxes.registrations(connection):
            if registration.status == "purged":
                continue
            folders = mailboxes.folders(connection, registration.id)
            accounts.append(
                {
                    "address": registration.address,
                    "status": registration.status,
                    "password": registration.status == "active" and registration.address in addresses_with_password,
                    "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(registration.created_at)),
                    "messages": sum(folder.messages for folder in folders),
                    "unread": sum(folder.unseen for folder in folders),
                    "octets": sum(folder.size for folder in folders),
                }
            )
    return accounts


def _addresses(transport: Transport, *statuses: str) -> set[str]:
    with transport.reading() as connection:
        return {each.address for each in mailboxes.registrations(connection) if each.status in statuses}
