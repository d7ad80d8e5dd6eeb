"""A real Postfix as smarthost, with the rest of the world behind it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import RelaySettings
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.smtp.commands import Body
from tests.support.certificates import make_certificate
from tests.support.messages import message
from tests.support.processes.fronts import free_port, open_directory
from tests.support.processes.postfix import Postfix, running_postfix
from tests.support.relays import DAVE, ERIN, inbox, queue, read_report, relaying, send
from tests.support.sink import Sink
from tests.support.waiting import until

pytestmark = [
    pytest.mark.needs("postfix"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Postfix must be started by root"),
]

_MAIN = """
myhostname = smarthost.test
relayhost = [127.0.0.1]:{world}
smtpd_relay_restrictions = permit_mynetworks, reject
smtpd_recipient_restrictions = check_recipient_access inline:{{
  {{ nobody@far.test = 550 5.1.1 No such user }}, {{ busy@far.test = 450 4.2.1 Come back later }} }}
smtpd_tls_cert_file = {certificate}
smtpd_tls_key_file = {key}
smtpd_tls_security_level = may
smtpd_client_message_rate_limit = 0
message_size_limit = 10000000
"""
_MASTER = """
127.0.0.1:{wrapped} inet n - n - - smtpd -o smtpd_tls_wrappermode=yes
"""


@dataclass(frozen=True)
class Smarthost:
    postfix: Postfix
    certificate: str
    wrapped: int  # the port with TLS from the start
    world: int  # where Postfix sends all mail


@pytest.fixture(scope="module")
def smarthost() -> Iterator[Smarthost]:
    with open_directory() as home:
        tls, wrapped, world = make_certificate(home, "localhost"), free_port(), free_port()
        main = _MAIN.format(world=world, certificate=tls.certificate, key=tls.key)
        with running_postfix(home, main, _MASTER.format(wrapped=wrapped)) as postfix:
            yield Smarthost(postfix, tls.certificate, wrapped, world)


@pytest.fixture
async def world(smarthost: Smarthost) -> AsyncIterator[Sink]:
    """The server behind the smarthost, with no mail yet."""
    sink = Sink()
    await sink.start(smarthost.world)
    yield sink
    await sink.stop()


def through(smarthost: Smarthost, **others: Any) -> RelaySettings:
    values = {"host": "127.0.0.1", "port": smarthost.postfix.port, "tls": "none", "helo": "markpost.test", **others}
    return RelaySettings(**values)


LETTERS = {
    "plain": message(body="Hello.\r\n", message_id="<1@example.test>"),
    "dots": message(body=".\r\n..\r\n.hidden\r\n", message_id="<2@example.test>"),
    "eight bit": message(body="Grüße\r\n", message_id="<3@example.test>"),
    "attachment": message(attachments=[bytes(range(256)) * 2000], message_id="<4@example.test>"),
}


async def test_mail_arrives_behind_the_smarthost_as_it_is_stored(
    smarthost: Smarthost, world: Sink, transport: Transport
) -> None:
    async with relaying(transport, through(smarthost)):
        for octets in LETTERS.values():
            send(transport, DAVE, ERIN, octets=octets, envelope=op.RelayEnvelope(body=Body.EIGHT_BIT))
        await until(lambda: not queue(transport))
        arrived = await world.wait_for(len(LETTERS))
    assert len(arrived) == len(LETTERS)
    for octets in LETTERS.values():
        assert [taken for taken in arrived if taken.octets.endswith(octets)]
    assert all(sorted(taken.addresses) == sorted([DAVE, ERIN]) for taken in arrived)
    assert inbox(transport) == []


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_tls_to_postfix(smarthost: Smarthost, world: Sink, transport: Transport, tls: str) -> None:
    port = smarthost.wrapped if tls == "implicit" else smarthost.postfix.port
    chosen = through(smarthost, host="localhost", port=port, tls=tls, ca_file=smarthost.certificate)
    async with relaying(transport, chosen):
        send(transport)
        [taken] = await world.wait_for(1)
    assert b"with ESMTPS" in taken.octets


async def test_each_recipient_of_postfix_has_its_own_fate(
    smarthost: Smarthost, world: Sink, transport: Transport
) -> None:
    async with relaying(transport, through(smarthost)):
        send(transport, DAVE, "nobody@far.test", "busy@far.test")
        [taken] = await world.wait_for(1)
        await until(lambda: len(inbox(transport)) == 1)
        await until(lambda: [row.attempts for row in queue(transport)] == [1])
    assert taken.addresses == [DAVE]
    [left] = queue(transport)
    assert left.recipient == "busy@far.test"
    assert "Come back later" in left.last_status
    recipients = read_report(inbox(transport)[0]).recipients
    assert recipients.keys() == {"nobody@far.test"}
    assert "No such user" in recipients["nobody@far.test"]["Diagnostic-Code"]


async def test_delivery_report_wishes_go_all_the_way(smarthost: Smarthost, world: Sink, transport: Transport) -> None:
    """Postfix and the server behind it both offer DSN: the last one reports."""
    async with relaying(transport, through(smarthost)):
        wish = op.RelayRecipient(DAVE, frozenset({"SUCCESS"}), "rfc822;first.name@far.test")
        send(transport, wish, envelope=op.RelayEnvelope(envid="Q=1"))
        [taken] = await world.wait_for(1)
        await until(lambda: not queue(transport))
    assert "NOTIFY=SUCCESS" in taken.recipients[0]
    assert "ORCPT=rfc822;first.name@far.test" in taken.recipients[0]
    assert "ENVID=Q+3D1" in taken.mail
    assert inbox(transport) == []


async def test_too_large_for_postfix(smarthost: Smarthost, transport: Transport) -> None:
    async with relaying(transport, through(smarthost)):
        send(transport, octets=message(body="0123456789\r\n" * 1_000_000))
        await until(lambda: len(inbox(transport)) == 1)
    assert read_report(inbox(transport)[0]).recipients[DAVE]["Status"] == "5.3.4"
    assert queue(transport) == []


async def test_mail_waits_while_postfix_is_down(smarthost: Smarthost, world: Sink, transport: Transport) -> None:
    impatient = through(smarthost, first_retry=Seconds(0.1), longest_retry=Seconds(1.0))
    await asyncio.to_thread(smarthost.postfix.stop)
    async with relaying(transport, impatient):
        send(transport)
        await until(lambda: all(row.attempts for row in queue(transport)))
        refused = queue(transport)[0].last_status
        await asyncio.to_thread(smarthost.postfix.start)
        await world.wait_for(1)
        await until(lambda: not queue(transport))
    assert refused.startswith("451 4.4.1 cannot connect")
