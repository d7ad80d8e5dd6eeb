"""``markpost deliver``: one message from a file or standard input into the mailboxes of its recipients.

The exit status is one a mail transport agent understands (see :mod:`adapter.cli.failures`). If some recipients got the
message and others did not, the message id is printed, each failure is a line on stderr, and the status is that of the
failures: temporary if one of them is, since mail must not bounce that could be delivered later.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import BinaryIO

import click

from adapter.api import new_message_id
from adapter.cli import interrupts
from adapter.cli.failures import DATA, NO_INPUT, TEMPORARY, CommandError, explain, status_of
from adapter.cli.options import open_store, root_option
from adapter.content.compose import compose
from adapter.exchange.eml import SUFFIX, with_crlf
from adapter.store import names
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.staging import Staged
from adapter.transport.transport import Transport
from protocol.errors import MailError

_CHUNK = 1 << 18
_MAX_MARKDOWN = 16 << 20
_MARKDOWN = (".md", ".markdown")
_HEADER_FIELD = re.compile(rb"(?:From |[!-9;-~]+[ \t]*:)")


@click.command(short_help="Put a message into mailboxes.")
@root_option
@click.option("--from", "sender", metavar="ADDRESS", required=True, help="Who sends it; empty for a delivery report.")
@click.option("--to", "recipients", metavar="ADDRESS", required=True, multiple=True, help="May be given many times.")
@click.argument("file")
def deliver(root: str, sender: str, recipients: tuple[str, ...], file: str) -> None:
    """Deliver FILE, or standard input for "-": Markdown (.md) or a message as it travels (.eml).

    Prints the id of the message. A sender who has a mailbox here gets a copy in Sent. Markdown may start with front
    matter: from, to, cc, reply_to, subject, in_reply_to, references; another key is refused. It says what the headers
    say; who gets the message, --to alone does.
    """
    sender = names.normalise_address(sender) if sender not in ("", "<>") else ""
    addresses = list(dict.fromkeys(map(names.normalise_address, recipients)))
    with _open(file) as source, interrupts.held(), open_store(root) as transport:
        failed = _unknown(transport, addresses)
        known = [address for address in addresses if address not in failed]
        if known:
            staged = _stage(transport, _read(file, source), _is_markdown_name(file), sender, addresses)
            local = bool(sender) and not _unknown(transport, [sender])
            delivery = transport.run(op.Deliver(staged, sender, known, keep_sent=local))
            failed |= {
                address: outcome for address, outcome in delivery.recipients.items() if isinstance(outcome, MailError)
            }
            if len(failed) < len(addresses):
                click.echo(delivery.message_id)
    for error in failed.values():
        click.echo(f"markpost: {explain(error)[0]}", err=True)
    if failed:
        statuses = [status_of(error) for error in failed.values()]
        raise click.exceptions.Exit(TEMPORARY if TEMPORARY in statuses else statuses[0])


def _open(file: str) -> AbstractContextManager[BinaryIO]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return open(file, "rb")
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}", NO_INPUT) from error


def _unknown(transport: Transport, addresses: list[str]) -> dict[str, MailError]:
    unknown = {}
    with transport.reading() as connection:
        for address in addresses:
            try:
                mailboxes.active_registration(connection, address)
            except MailError as error:
                unknown[address] = error
    return unknown


def _stage(
    transport: Transport, chunks: Iterator[bytes], markdown: bool | None, sender: str, recipients: list[str]
) -> Staged:
    first = next(chunks, b"")
    chunks = itertools.chain([first], chunks)
    # Where the name does not tell, the looks do: a message starts with a header field.
    if not _HEADER_FIELD.match(first) if markdown is None else markdown:
        if not sender:
            raise CommandError("a Markdown message needs a sender: give one with --from", DATA)
        octets = compose(
            _markdown(chunks),
            sender=sender,
            recipients=recipients,
            now=datetime.now(UTC),
            message_id=new_message_id(sender),
        )
        return transport.stage(octets)
    with transport.spool() as spool:
        for chunk in with_crlf(chunks):
            spool.write(chunk)
        return spool.stage()


def _is_markdown_name(file: str) -> bool | None:
    suffix = os.path.splitext(file)[1].lower()
    return True if suffix in _MARKDOWN else False if suffix == SUFFIX else None


def _read(name: str, source: BinaryIO) -> Iterator[bytes]:
    try:
        while True:
            with interrupts.allowed():
                chunk = source.read(_CHUNK)
            if not chunk:
                return
            yield chunk
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}", NO_INPUT) from error


def _markdown(chunks: Iterator[bytes]) -> bytes:
    text = b""
    for chunk in chunks:
        text += chunk
        if len(text) > _MAX_MARKDOWN:
            raise CommandError(f"more than {_MAX_MARKDOWN >> 20} MiB of Markdown: attach it instead", DATA)
    return text
