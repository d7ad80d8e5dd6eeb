"""``markpost account``: addresses, their mailboxes and passwords."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from adapter.accounts import credentials as accounts
from adapter.accounts.credentials import Credentials
from adapter.cli.failures import CommandError
from adapter.cli.options import on_terminal, open_store, plural, read_password, root_option, size
from adapter.store import names
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.operations.registration import DeregisterMode, RegisterMode
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.smtp.paths import parse_path

_password_option = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")


@click.group(short_help="Addresses, their mailboxes and passwords.")
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
    help="If the address is registered: refuse; take its mailbox over; set its mailbox aside and start an empty one.",
)
def add(address: str, root: str, password_stdin: bool, mode: RegisterMode) -> None:
    """Register ADDRESS with its folders and, if one is given, a password."""
    _check_spelling(address)
    address = names.normalise_address(address)
    with open_store(root) as transport, Credentials.open(transport) as credentials:
        if mode == "safe" and address in _registered(transport, "active"):
            raise MailError(Reason.ADDRESS_EXISTS, address)
        password = read_password(password_stdin)
        if password is not None:
            accounts.check(address, password)
        transport.run(op.Register(address, mode))
        if password is not None:
            credentials.set_password(address, password)
            click.echo(f"{address}: registered, password set")
        elif address in credentials.list():
            click.echo(f"{address}: registered, it keeps its password")
        else:
            click.echo(f"{address}: registered without a password; set one with markpost account passwd")


def _check_spelling(address: str) -> None:
    """Of a new address: a slip of the fingers should not become a mailbox that nobody can write to."""
    if "@" in address and parse_path(f"<{address.rstrip('.')}>") is None:
        raise CommandError(f"{address!r} is not an address; a name with blanks or an @ stands in quotes")


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
            raise CommandError("there is no terminal to ask for the password: give it with --password-stdin")
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
    help="Keep the mail in place; set it aside; remove it for good.",
)
@click.option("--yes", is_flag=True, help="Purge without asking.")
def remove(address: str, root: str, mode: DeregisterMode, yes: bool) -> None:
    """Deregister ADDRESS and forget its password."""
    address = names.normalise_address(address)
    with open_store(root) as transport, Credentials.open(transport) as credentials:
        wanted = ("active",) if mode == "deactivate" else ("active", "inactive")
        if address not in _registered(transport, *wanted):
            raise MailError(Reason.NO_SUCH_ADDRESS, address)
        if mode == "purge" and not yes:
            if not on_terminal():
                raise CommandError("purge removes the mail for good: say so with --yes")
            click.confirm(f"Remove all mail of {address} for good?", abort=True, err=True)
        # The password goes first: an address that is registered anew must not come with an old one.
        credentials.remove(address)
        transport.run(op.Deregister(address, mode))
    done = {
        "deactivate": "deactivated; its mail is in place, markpost account add brings it back",
        "stash": "its mailbox is set aside",
        "purge": "its mail is removed",
    }
    click.echo(f"{address}: {done[mode]}")


@account.command(name="list")
@root_option
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_(root: str, as_json: bool) -> None:
    """List the registered addresses, stashed ones included."""
    with open_store(root) as transport, Credentials.open(transport) as credentials:
        known = _describe(transport, set(credentials.list()))
    if as_json:
        click.echo(json.dumps(known, indent=2, ensure_ascii=False))
        return
    if not known:
        click.echo("no address is registered: see markpost account add", err=True)
    width = max((len(each["address"]) for each in known), default=0)
    for each in known:
        locked = "" if each["password"] or each["status"] != "active" else "  no password"
        counts = f"{plural(each['messages'], 'message'):>16} {size(each['octets']):>8}"
        click.echo(f"{each['address']:{width}}  {each['status']:8} {counts}{locked}")


def _describe(transport: Transport, with_password: set[str]) -> list[dict[str, Any]]:
    described = []
    with transport.reading() as connection:
        for registration in mailboxes.registrations(connection):
            if registration.status == "purged":
                continue
            folders = mailboxes.folders(connection, registration.id)
            described.append(
                {
                    "address": registration.address,
                    "status": registration.status,
                    "password": registration.status == "active" and registration.address in with_password,
                    "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(registration.created_at)),
                    "messages": sum(folder.messages for folder in folders),
                    "unread": sum(folder.unseen for folder in folders),
                    "octets": sum(folder.size for folder in folders),
                }
            )
    return described


def _registered(transport: Transport, *statuses: str) -> set[str]:
    with transport.reading() as connection:
        return {each.address for each in mailboxes.registrations(connection) if each.status in statuses}
