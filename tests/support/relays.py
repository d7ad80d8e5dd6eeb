"""Stores with an outbox, and a relay that empties it."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
from collections.abc import AsyncIterator
from dataclasses import dataclass
from email.message import EmailMessage, Message, MIMEPart
from typing import Any, cast

from adapter.config.loader import Seconds
from adapter.config.schema import RelaySettings
from adapter.relay import relay
from adapter.store.queries import outbox
from adapter.store.queries.outbox import QueueRow
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.sink import Sink
from tests.support.stores import ADA, rows
from tests.support.waiting import PATIENCE, until

DAVE = "Dave@far.test"
ERIN = "erin@far.test"
HOST = "markpost.test"


def settings(sink: Sink, **others: Any) -> RelaySettings:
    """Everything goes to the sink, impatiently."""
    defaults = {"tls": "none", "first_retry": Seconds(0.02), "longest_retry": Seconds(1.0), "helo": HOST}
    return RelaySettings(host="127.0.0.1", port=sink.port, **{**defaults, **others})


@contextlib.asynccontextmanager
async def relaying(transport: Transport, chosen: RelaySettings, **others: Any) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(relay.run(transport, chosen, stop, hostname=HOST, **others))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE):
            await task


def send(
    transport: Transport,
    *recipients: str | op.RelayRecipient,
    octets: bytes | None = None,
    sender: str = ADA,
    envelope: op.RelayEnvelope | None = None,
) -> op.Delivery:
    """Queue a message for remote recipients only."""
    staged = transport.stage(message() if octets is None else octets)
    remote = [op.RelayRecipient(each) if isinstance(each, str) else each for each in recipients or (DAVE,)]
    return transport.run(op.Deliver(staged, sender, [], relay=remote, envelope=envelope))


def queue(transport: Transport) -> list[QueueRow]:
    with transport.reading() as connection:
        return outbox.queued(connection)


async def status_after_attempt(transport: Transport, chosen: RelaySettings) -> str:
    """Send a message that stays in the queue; return its status after the first attempt."""
    async with relaying(transport, chosen):
        send(transport)
        await until(lambda: all(row.attempts for row in queue(transport)))
    return queue(transport)[0].last_status


def inbox(transport: Transport, address: str = ADA) -> list[bytes]:
    return [transport.content.octets(row.message_id) for row in rows(transport, address=address)]


@dataclass(frozen=True)
class ReportRead:
    """A delivery report (RFC 3464) as the standard library reads it."""

    message: EmailMessage
    text: str  # for people
    about: Message  # the fields for the message
    recipients: dict[str, Message]  # final recipient -> fields
    returned: MIMEPart  # the part with the message, or its header


def read_report(octets: bytes) -> ReportRead:
    parsed = email.message_from_bytes(octets, policy=email.policy.default)
    assert parsed.get_content_type() == "multipart/report"
    assert parsed.get_param("report-type") == "delivery-status"
    assert not parsed.defects
    text, status, returned = parsed.iter_parts()
    assert status.get_content_type() in ("message/delivery-status", "message/global-delivery-status")
    about, *groups = cast("list[Message]", status.get_payload())
    recipients = {str(group["Final-Recipient"]).partition(";")[2].strip(): group for group in groups if group.keys()}
    return ReportRead(parsed, text.get_content(), about, recipients, returned)
