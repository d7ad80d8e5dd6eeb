"""``markpost deliver``: deliver one message from a file or standard input.

The exit status is one that a mail transfer agent understands (see :mod:`adapter.cli.failures`). If delivery fails for
some recipients only, the command prints the message id, one line on stderr for each failure, and returns the status of
the failures: the temporary one if any is temporary, so that mail does not bounce that could be delivered later.
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
from adapter.cli.failures import (
    EX_DATAERR,
    EX_NOINPUT,
    EX_TEMPFAIL,
    CommandError,
    deferred_interrupts,
    exit_status,
    explain,
    immediate_interrupts,
)
from adapter.cli.options import open_store, root_option
from adapter.content.compose import compose
from adapter.exchange.eml import SUFFIX, with_crlf
from adapter.store import names
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.staging import Staged
from adapter.transport.transport import Transport
from protocol.errors import MailError

_CHUNK_BYTES = 1 << 18
_MAX_MARKDOWN_BYTES = 16 << 20
_MARKDOWN_SUFFIXES = (".md", ".markdown")
_HEADER_FIELD = re.compile(rb"(?:From |[!-9;-~]+[ \t]*:)")


@click.command(short_help="Deliver a message into mailboxes.")
@root_option
@click.option("--from", "sender", metavar="ADDRESS", required=True, help="Envelope sender; empty for a bounce.")
@click.option(
    "--to",
    "recipients",
    metavar="ADDRESS",
    required=True,
    multiple=True,
    help="Envelope recipient; repeat the option for more.",
)
@click.argument("file")
def deliver(root: str, sender: str, recipients: tuple[str, ...], file: str) -> None:
    """Deliver FILE, or standard input for "-": Markdown (.md) or an RFC 5322 message (.eml).

    Prints the id of the message. A sender with a mailbox here gets a copy in Sent. Markdown may start with front
    matter: from, to, cc, reply_to, subject, in_reply_to, references; unknown keys are rejected. The front matter sets
    header fields only; --to alone decides who receives the message.
    """
    sender = names.normalise_address(sender) if sender not in ("", "<>") else ""
    addresses = list(dict.fromkeys(map(names.normalise_address, recipients)))
    with _open(file) as source, deferred_interrupts(), open_store(root) as transport:
        failures = _address_errors(transport, addresses)
        accepted = [address for address in addresses if address not in failures]
        if accepted:
            staged = _stage(transport, _read_chunks(file, source), _is_markdown_name(file), sender, addresses)
            keep_sent = bool(sender) and not _address_errors(transport, [sender])
            delivery = transport.run(op.Deliver(staged, sender, accepted, keep_sent=keep_sent))
            failures |= {
                address: outcome for address, outcome in delivery.recipients.items() if isinstance(outcome, MailError)
            }
            if len(failures) < len(addresses):
                click.echo(delivery.message_id)
    for error in failures.values():
        click.echo(f"markpost: {explain(error)[0]}", err=True)
    if failures:
        statuses = [exit_status(error) for error in failures.values()]
        raise click.exceptions.Exit(EX_TEMPFAIL if EX_TEMPFAIL in statuses else statuses[0])


def _open(file: str) -> AbstractContextManager[BinaryIO]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return open(file, "rb")
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}", EX_NOINPUT) from error


def _address_errors(transport: Transport, addresses: list[str]) -> dict[str, MailError]:
    errors = {}
    with transport.reading() as connection:
        for address in addresses:
            try:
                mailboxes.active_registration(connection, address)
            except MailError as error:
                errors[address] = error
    return errors


def _stage(
    transport: Transport, chunks: Iterator[bytes], is_markdown: bool | None, sender: str, recipients: list[str]
) -> Staged:
    first = next(chunks, b"")
    chunks = itertools.chain([first], chunks)
    if is_markdown is None:  # the file name does not say: an RFC 5322 message starts with a header field
        is_markdown = not _HEADER_FIELD.match(first)
    if is_markdown:
        if not sender:
            raise CommandError("a Markdown message needs a sender: give it with --from", EX_DATAERR)
        octets = compose(
            _read_markdown(chunks),
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
    return True if suffix in _MARKDOWN_SUFFIXES else False if suffix == SUFFIX else None


def _read_chunks(name: str, source: BinaryIO) -> Iterator[bytes]:
    try:
        while True:
            with immediate_interrupts():
                chunk = source.read(_CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}", EX_NOINPUT) from error


def _read_markdown(chunks: Iterator[bytes]) -> bytes:
    text = b""
    for chunk in chunks:
        text += chunk
        if len(text) > _MAX_MARKDOWN_BYTES:
            raise CommandError(
                f"more than {_MAX_MARKDOWN_BYTES >> 20} MiB of Markdown: send it as an attachment instead", EX_DATAERR
            )
    return text
