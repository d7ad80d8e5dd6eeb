"""``markpost queue``: show and manage the outbox, mail queued for the smarthost.

A running server is notified of every change: retried mail is sent now, dropped mail is not attempted again. A delivery
attempt that is already in progress is not cancelled.
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


@click.group(short_help="Show and manage mail queued for the smarthost.")
def queue() -> None:
    """Show and manage mail queued for the smarthost."""


@queue.command(name="list")
@root_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_(root: str, as_json: bool) -> None:
    """List the queue: one entry for each recipient, oldest first."""
    with open_store(root) as transport, transport.reading() as connection:
        rows = outbox.queued(connection)
        sizes = outbox.sizes(connection)
    if as_json:
        entries = [_to_json(row, sizes.get(row.message_id, 0)) for row in rows]
        click.echo(json.dumps(entries, indent=2, ensure_ascii=False))
        return
    if not rows:
        click.echo("the queue is empty", err=True)
    now = time.time()
    for row in rows:
        wait = row.next_attempt_at - now
        when = "due now" if wait <= 0 else f"next in {_duration(wait)}"
        facts = f"{size(sizes.get(row.message_id, 0))}, queued {_duration(now - row.created_at)} ago"
        click.echo(f"{row.queue_id}  <{row.sender}> to <{row.recipient}>")
        click.echo(f"    {facts}, {plural(row.attempts, 'attempt')}, {when}")
        if row.last_status:
            click.echo(f"    {row.last_status}")


@queue.command(short_help="Retry now.")
@root_option
@_ids_argument
@click.option("--all", "everything", is_flag=True, help="Retry the whole queue.")
def retry(root: str, ids: tuple[str, ...], everything: bool) -> None:
    """Retry now, by queue id or message id, instead of waiting for the back-off."""
    if bool(ids) == everything:
        raise CommandError("give one or more queue or message ids, or --all")
    with open_store(root) as transport:
        rows = _select_rows(transport, None if everything else ids)
        now = int(time.time())
        requeued = transport.run(op.UpdateQueue([op.Requeued(row.queue_id, now) for row in rows])) if rows else []
    if requeued or everything:
        click.echo(f"{plural(len(requeued), 'recipient')} due now")
    _check_all_queued(ids, rows)


@queue.command(short_help="Remove from the queue.")
@root_option
@config_option
@_ids_argument
@click.option("--notify", is_flag=True, help="Return the message to its sender as undeliverable.")
def drop(root: str, config_file: str | None, ids: tuple[str, ...], notify: bool) -> None:
    """Remove recipients from the queue permanently, by queue id or message id."""
    if not ids:
        raise CommandError("give one or more queue or message ids; markpost queue list shows them")
    reporter = _hostname(config_file) if notify else None
    count = 0
    with open_store(root) as transport:
        rows = _select_rows(transport, ids)
        for _, group in groupby(sorted(rows, key=lambda row: row.message_id), key=lambda row: row.message_id):
            count += _drop(transport, list(group), reporter)
    if count:
        click.echo(f"{plural(count, 'recipient')} dropped")
    _check_all_queued(ids, rows)


def _hostname(config_file: str | None) -> str:
    """Return the Reporting-MTA name, the same that the server uses."""
    try:
        return loader.load(Settings, config_file).server.hostname or socket.getfqdn()
    except ConfigError as error:
        raise CommandError(str(error)) from None


def _drop(transport: Transport, rows: Sequence[QueueRow], reporter: str | None) -> int:
    """Drop the recipients of one message; ``reporter`` names the sender of delivery reports, None sends none."""
    items = [op.Finished(row.queue_id, "dropped", _DROPPED.text) for row in rows]
    notices = [bounce.Notice(row, "FAILURE", _DROPPED) for row in rows if bounce.is_requested(row, "FAILURE")]
    if reporter is not None and notices:
        try:
            report = bounce.stage_report(transport, reporter, notices, time.time())
            if report is not None:
                return len(transport.run(op.FinishQueue(items, report)))
        except op.StaleReport:
            return _drop(transport, _select_rows(transport, [row.queue_id for row in rows]), reporter)
        except MailError as error:
            if error.temporary:
                raise
        click.echo(
            f"markpost: {rows[0].message_id}: no delivery report: the sender <{rows[0].sender}> has no mailbox here",
            err=True,
        )
    return len(transport.run(op.FinishQueue(items)))


def _select_rows(transport: Transport, ids: Iterable[str] | None) -> list[QueueRow]:
    with transport.reading() as connection:
        return outbox.queued(connection) if ids is None else outbox.rows_of(connection, ids)


def _check_all_queued(ids: Iterable[str], rows: Iterable[QueueRow]) -> None:
    queued = {queued_id for row in rows for queued_id in (row.queue_id, row.message_id)}
    missing = [each for each in ids if each not in queued]
    if missing:
        raise CommandError(f"not in the queue: {', '.join(missing)}")


def _to_json(row: QueueRow, octets: int) -> dict[str, Any]:
    return {
        "id": row.queue_id,
        "message": row.message_id,
        "sender": row.sender,
        "recipient": row.recipient,
        "octets": octets,
        "queued": _timestamp(row.created_at),
        "attempts": row.attempts,
        "next_attempt": _timestamp(row.next_attempt_at),
        "last_status": row.last_status,
        "expires": _timestamp(row.expires_at),
    }


def _timestamp(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
