"""``markpost queue``: mail that waits for the smarthost.

A running server hears of every change at once: what is retried here goes out now, what is dropped is not tried again.
An attempt that is already under way is not called back.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import click

from adapter.cli.failures import CommandError
from adapter.cli.options import config_option, open_store, plural, root_option, size
from adapter.config import loader
from adapter.config.loader import ConfigError
from adapter.config.schema import Settings
from adapter.relay import bounce, replies
from adapter.store.queries import outbox
from adapter.store.queries.outbox import QueueRow
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError

_DROPPED = replies.failed("5.3.0", "removed from the queue by the operator")

_ids_argument = click.argument("ids", metavar="ID…", nargs=-1)


@click.group(short_help="Mail that waits for the smarthost.")
def queue() -> None:
    """See and manage mail that waits for the smarthost."""


@queue.command(name="list")
@root_option
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_(root: str, as_json: bool) -> None:
    """List what is queued: one entry for each recipient, oldest first."""
    with open_store(root) as transport, transport.reading() as connection:
        rows = outbox.queued(connection)
        sizes = outbox.sizes(connection)
    if as_json:
        described = [_describe(row, sizes.get(row.message_id, 0)) for row in rows]
        click.echo(json.dumps(described, indent=2, ensure_ascii=False))
        return
    if not rows:
        click.echo("nothing waits", err=True)
    now = time.time()
    for row in rows:
        wait = row.next_attempt_at - now
        when = "due now" if wait <= 0 else f"next in {_span(wait)}"
        facts = f"{size(sizes.get(row.message_id, 0))}, queued {_span(now - row.created_at)} ago"
        click.echo(f"{row.queue_id}  <{row.sender}> to <{row.recipient}>")
        click.echo(f"    {facts}, {plural(row.attempts, 'attempt')}, {when}")
        if row.last_status:
            click.echo(f"    {row.last_status}")


@queue.command(short_help="Try these now.")
@root_option
@_ids_argument
@click.option("--all", "everything", is_flag=True, help="Everything that is queued.")
def retry(root: str, ids: tuple[str, ...], everything: bool) -> None:
    """Try these now, by queue id or by message id, instead of when they would be due."""
    if bool(ids) == everything:
        raise CommandError("say which: one or more ids, or --all")
    with open_store(root) as transport:
        rows = _chosen(transport, None if everything else ids)
        now = int(time.time())
        done = transport.run(op.UpdateQueue([op.Requeued(row.queue_id, now) for row in rows])) if rows else []
    if done or everything:
        click.echo(f"{plural(len(done), 'recipient')} due now")
    _complain(ids, rows)


@queue.command(short_help="Remove these for good.")
@root_option
@config_option
@_ids_argument
@click.option("--notify", is_flag=True, help="Return the message to its sender as undeliverable.")
def drop(root: str, config_file: str | None, ids: tuple[str, ...], notify: bool) -> None:
    """Remove these from the queue for good, by queue id or by message id."""
    if not ids:
        raise CommandError("say which: one or more ids, see markpost queue list")
    reporter = _hostname(config_file) if notify else None
    count = 0
    with open_store(root) as transport:
        rows = _chosen(transport, ids)
        for _, group in groupby(sorted(rows, key=lambda row: row.message_id), key=lambda row: row.message_id):
            count += _drop(transport, list(group), reporter)
    if count:
        click.echo(f"{plural(count, 'recipient')} dropped")
    _complain(ids, rows)


def _hostname(config_file: str | None) -> str:
    """The name reports are made under, as those of the server are."""
    try:
        return loader.load(Settings, config_file).server.hostname or socket.getfqdn()
    except ConfigError as error:
        raise CommandError(str(error)) from None


def _drop(transport: Transport, rows: Sequence[QueueRow], reporter: str | None) -> int:
    """``reporter`` is who tells the senders; None: nobody does."""
    items = [op.Finished(row.queue_id, "dropped", _DROPPED.text) for row in rows]
    notices = [bounce.Notice(row, "FAILURE", _DROPPED) for row in rows if bounce.is_wanted(row, "FAILURE")]
    if reporter is not None and notices:
        try:
            report = bounce.stage(transport, reporter, notices, time.time())
            if report is not None:
                return len(transport.run(op.FinishQueue(items, report)))
        except op.StaleReport:
            return _drop(transport, _chosen(transport, [row.queue_id for row in rows]), reporter)
        except MailError as error:
            if error.temporary:
                raise
        click.echo(f"markpost: {rows[0].message_id}: its sender <{rows[0].sender}> has no mailbox here", err=True)
    return len(transport.run(op.FinishQueue(items)))


def _chosen(transport: Transport, ids: Iterable[str] | None) -> list[QueueRow]:
    with transport.reading() as connection:
        return outbox.queued(connection) if ids is None else outbox.rows_of(connection, ids)


def _complain(ids: Iterable[str], found: Iterable[QueueRow]) -> None:
    known = {known for row in found for known in (row.queue_id, row.message_id)}
    missing = [each for each in ids if each not in known]
    if missing:
        raise CommandError(f"not in the queue: {', '.join(missing)}")


def _describe(row: QueueRow, octets: int) -> dict[str, Any]:
    return {
        "id": row.queue_id,
        "message": row.message_id,
        "sender": row.sender,
        "recipient": row.recipient,
        "octets": octets,
        "queued": _time(row.created_at),
        "attempts": row.attempts,
        "next_attempt": _time(row.next_attempt_at),
        "last_status": row.last_status,
        "expires": _time(row.expires_at),
    }


def _time(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
