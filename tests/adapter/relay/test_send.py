"""The relay against a scripted smarthost: the commands and data sent, and the result of each reply."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import RelaySettings
from adapter.relay import relay
from adapter.store.effects import Actor
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.smtp.commands import Body, Ret
from tests.support.messages import message
from tests.support.relays import DAVE, ERIN, inbox, queue, relaying, send, settings
from tests.support.sink import HangUp, Sink
from tests.support.store.journals import actors
from tests.support.stores import ADA
from tests.support.waiting import until

# --- commands and data -----------------------------------------------------------------------------------------------


async def test_message_is_sent_as_stored_and_leaves_the_queue(transport: Transport) -> None:
    octets = message(body=".\r\n..dots\r\n.end\r\n" + "x" * 500 + "\r\n")
    async with Sink() as sink, relaying(transport, settings(sink)):
        send(transport, DAVE, ERIN, octets=octets)
        [taken] = await sink.wait_for(1)
        await until(lambda: not queue(transport))
    assert taken.octets == octets
    assert sorted(taken.addresses) == sorted([DAVE, ERIN])  # one transaction, the local part's case kept
    assert taken.mail.startswith(f"MAIL FROM:<{ADA}> SIZE={len(octets)}")
    assert inbox(transport) == []


@pytest.mark.parametrize("size", [50, 2 << 20])
async def test_return_path_is_not_sent(transport: Transport, size: int) -> None:
    octets = message(body="x" * 70 + "\r\n" + "y\r\n" * (size // 3))
    other = b"Return-Path: <somebody@else.test>\r\n" + octets
    async with Sink() as sink, relaying(transport, settings(sink)):
        send(transport, octets=f"Return-Path: <{ADA}>\r\n".encode() + octets)
        await sink.wait_for(1)
        send(transport, octets=other)
        await sink.wait_for(2)
    assert [taken.octets for taken in sink.taken] == [octets, other]
    assert sink.taken[0].mail.startswith(f"MAIL FROM:<{ADA}> SIZE={len(octets)}")


async def test_new_mail_is_sent_at_once_over_an_open_connection(transport: Transport) -> None:
    async with Sink() as sink, relaying(transport, settings(sink)):
        for number in range(1, 4):
            send(transport)
            await sink.wait_for(number)
            await until(lambda: not queue(transport))
    assert sink.connections == 1


@pytest.mark.setting("relay.connections")
async def test_connections_are_limited(transport: Transport) -> None:
    async with Sink() as sink:
        for _ in range(30):
            send(transport)
        async with relaying(transport, settings(sink, connections=3)):
            await sink.wait_for(30)
            await until(lambda: not queue(transport))
    assert 1 <= sink.open_most <= 3
    assert len(sink.taken) == 30


@pytest.mark.setting("relay.recipients")
async def test_many_recipients_are_split_into_transactions(transport: Transport) -> None:
    async with Sink() as sink, relaying(transport, settings(sink, recipients=4)):
        send(transport, *(f"r{number}@far.test" for number in range(10)))
        await until(lambda: not queue(transport))
    assert sorted(len(taken.addresses) for taken in sink.taken) == [2, 4, 4]
    assert len({address for taken in sink.taken for address in taken.addresses}) == 10


async def test_large_messages_are_streamed(transport: Transport) -> None:
    body = "".join(f".line {number}\r\n" for number in range(400_000))
    octets = message(body=body, attachments=[bytes(range(256)) * 4000])
    async with Sink() as sink, relaying(transport, settings(sink)):
        send(transport, octets=octets)
        [taken] = await sink.wait_for(1)
    assert taken.octets == octets


async def test_bare_line_ends_become_crlf(transport: Transport) -> None:
    async with Sink() as sink, relaying(transport, settings(sink)):
        send(transport, octets=b"Subject: x\n\none\n.\ntwo\rthree")
        [taken] = await sink.wait_for(1)
    assert taken.octets == b"Subject: x\r\n\r\none\r\n.\r\ntwo\r\nthree\r\n"
    assert f"SIZE={len(taken.octets)}" in taken.mail


async def test_delivery_report_parameters_are_passed_on(transport: Transport) -> None:
    recipients = [
        op.RelayRecipient(DAVE, frozenset({"SUCCESS", "DELAY"}), "rfc822;dave+2Bx@far.test"),
        op.RelayRecipient(ERIN, frozenset()),
    ]
    async with Sink() as sink, relaying(transport, settings(sink)):
        send(transport, *recipients, envelope=op.RelayEnvelope(Ret.HEADERS, "id=1"))
        [taken] = await sink.wait_for(1)
    assert "RET=HDRS" in taken.mail
    assert "ENVID=id+3D1" in taken.mail
    assert f"RCPT TO:<{DAVE}> NOTIFY=DELAY,SUCCESS ORCPT=rfc822;dave+2Bx@far.test" in taken.recipients
    assert f"RCPT TO:<{ERIN}> NOTIFY=NEVER" in taken.recipients
    assert inbox(transport) == []  # the smarthost reports


async def test_parameters_are_sent_only_if_offered(transport: Transport) -> None:
    recipient = op.RelayRecipient(DAVE, frozenset({"FAILURE"}), "rfc822;dave@far.test")
    async with Sink(extensions=["HELP"]) as sink, relaying(transport, settings(sink)):
        send(transport, recipient, envelope=op.RelayEnvelope(Ret.HEADERS, "id"))
        [taken] = await sink.wait_for(1)
    assert taken.mail == f"MAIL FROM:<{ADA}>"
    assert taken.recipients == [f"RCPT TO:<{DAVE}>"]


@pytest.mark.parametrize("reply", ["500 what?", "501 no", "502 5.5.1 no", "504 no"])
async def test_server_without_ehlo_gets_helo(transport: Transport, reply: str) -> None:
    def old(verb: str, command: str) -> str | None:
        return reply if verb == "EHLO" else None

    async with Sink(old) as sink, relaying(transport, settings(sink)):
        send(transport)
        [taken] = await sink.wait_for(1)
    assert taken.mail == f"MAIL FROM:<{ADA}>"
    assert "HELO markpost.test" in sink.commands


async def test_international_host_name_is_sent_in_ascii(transport: Transport) -> None:
    async with Sink() as sink, relaying(transport, settings(sink, helo="post.bücher.test")):
        send(transport)
        await sink.wait_for(1)
    assert sink.commands[0] == "EHLO post.xn--bcher-kva.test"


async def test_null_sender_is_sent_as_empty_path(transport: Transport) -> None:
    async with Sink() as sink, relaying(transport, settings(sink)):
        send(transport, sender="")
        [taken] = await sink.wait_for(1)
    assert taken.mail.startswith("MAIL FROM:<> ")


# --- extensions that the content needs -------------------------------------------------------------------------------

EIGHT_BIT = message(body="Grüße\r\n")
INTERNATIONAL_PART = (
    "Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Description: Grüße\r\n\r\nHallo\r\n--b--\r\n"
).encode()
INTERNATIONAL = "Subject: Grüße\r\n\r\nHallo\r\n".encode()
BINARY = b"Subject: x\r\nContent-Type: application/octet-stream\r\n\r\n\0\r\0\n" + b"y" * 300


async def test_eight_bit_content_is_declared(transport: Transport) -> None:
    async with Sink() as sink, relaying(transport, settings(sink)):
        send(transport, octets=EIGHT_BIT)
        [taken] = await sink.wait_for(1)
    assert taken.octets == EIGHT_BIT
    assert "BODY=8BITMIME" in taken.mail
    assert "SMTPUTF8" not in taken.mail


@pytest.mark.parametrize(
    ("octets", "recipient", "envelope", "status"),
    [
        (EIGHT_BIT, DAVE, op.RelayEnvelope(body=Body.EIGHT_BIT), "5.6.3"),
        (BINARY, DAVE, op.RelayEnvelope(body=Body.BINARY), "5.6.3"),
        (message(), "dörte@far.test", op.RelayEnvelope(smtputf8=True), "5.6.7"),
        (message(), DAVE, op.RelayEnvelope(requiretls=True), "5.7.30"),
        (message(body="x" * 900 + "\r\n"), DAVE, None, "5.3.4"),
    ],
)
async def test_content_beyond_the_smarthosts_extensions_is_returned(
    transport: Transport, octets: bytes, recipient: str, envelope: op.RelayEnvelope | None, status: str
) -> None:
    async with Sink(extensions=["SIZE 700"]) as sink, relaying(transport, settings(sink)):
        send(transport, recipient, octets=octets, envelope=envelope)
        await until(lambda: len(inbox(transport)) == 1)
    assert f"Status: {status}".encode() in inbox(transport)[0]
    assert sink.taken == []
    assert queue(transport) == []


async def test_international_header_requires_smtputf8(transport: Transport) -> None:
    async with Sink(extensions=["8BITMIME"]) as sink, relaying(transport, settings(sink)):
        send(transport, octets=INTERNATIONAL, envelope=op.RelayEnvelope(smtputf8=True))
        await until(lambda: len(inbox(transport)) == 1)
    assert b"Status: 5.6.7" in inbox(transport)[0]


@pytest.mark.parametrize("octets", [INTERNATIONAL, INTERNATIONAL_PART], ids=["message", "part"])
async def test_international_header_declares_smtputf8(transport: Transport, octets: bytes) -> None:
    async with Sink() as sink, relaying(transport, settings(sink)):
        send(transport, octets=octets, envelope=op.RelayEnvelope(smtputf8=True))
        [taken] = await sink.wait_for(1)
        send(transport, envelope=op.RelayEnvelope(smtputf8=True))
        [_, plain] = await sink.wait_for(2)
    assert taken.mail.endswith("SMTPUTF8")
    assert "SMTPUTF8" not in plain.mail


async def test_international_domain_is_sent_in_ascii_without_smtputf8(transport: Transport) -> None:
    async with Sink(extensions=["8BITMIME"]) as sink, relaying(transport, settings(sink)):
        recipients = ["dave@bücher.test", "dave@straße.test", "dave@☃.test", "dörte@far.test"]
        send(transport, *recipients, envelope=op.RelayEnvelope(smtputf8=True))
        [taken] = await sink.wait_for(1)
        await until(lambda: not queue(transport))
    assert sorted(taken.addresses) == ["dave@xn--bcher-kva.test", "dave@xn--strae-oqa.test"]
    [report] = inbox(transport)
    assert report.count(b"Status: 5.6.7") == report.count(b"Final-Recipient: ") == 2


async def test_binary_content_is_sent_in_chunks(transport: Transport) -> None:
    async with Sink(extensions=["BINARYMIME", "CHUNKING"]) as sink, relaying(transport, settings(sink)):
        send(transport, octets=BINARY, envelope=op.RelayEnvelope(body=Body.BINARY))
        [taken] = await sink.wait_for(1)
    assert taken.octets == BINARY
    assert taken.mail.endswith("BODY=BINARYMIME")


# --- results ---------------------------------------------------------------------------------------------------------


async def test_each_recipient_has_its_own_result(transport: Transport) -> None:
    def script(verb: str, command: str) -> str | None:
        if verb == "RCPT" and "nobody" in command:
            return "550-5.1.1 there is no\r\n550 5.1.1 such user"
        return "450 4.2.1 busy" if verb == "RCPT" and "busy" in command else None

    patient = {"first_retry": Seconds(60), "longest_retry": Seconds(60)}
    async with Sink(script) as sink, relaying(transport, settings(sink, **patient)):
        send(transport, DAVE, "nobody@far.test", "busy@far.test")
        [taken] = await sink.wait_for(1)
        await until(lambda: len(queue(transport)) == 1 and queue(transport)[0].attempts == 1)
    assert taken.addresses == [DAVE]
    [left] = queue(transport)
    assert (left.recipient, left.last_status) == ("busy@far.test", "450 4.2.1 busy")
    [report] = inbox(transport)
    assert b"Final-Recipient: rfc822;nobody@far.test" in report
    assert b"Diagnostic-Code: smtp; 550 5.1.1 there is no such user" in report
    assert b"Final-Recipient: rfc822;busy" not in report


def times(count: int, step: str, reply: str) -> Any:
    """A script that gives this reply ``times`` times and then accepts; an empty reply hangs up."""
    left = [count]

    def script(verb: str, command: str) -> str | None:
        if verb != step or not left[0]:
            return None
        left[0] -= 1
        if not reply:
            raise HangUp
        return reply

    return script


@pytest.mark.parametrize("step", ["connect", "EHLO", "MAIL", "RCPT", "DATA", "."])
@pytest.mark.parametrize("reply", ["421 4.3.2 going down", "451 4.3.0 later", ""])
async def test_temporary_error_is_retried(transport: Transport, step: str, reply: str) -> None:
    async with Sink(times(2, step, reply)) as sink, relaying(transport, settings(sink)):
        send(transport)
        await sink.wait_for(1)
        await until(lambda: not queue(transport))
    assert len(sink.taken) == 1
    assert inbox(transport) == []


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA", "."])
async def test_permanent_error_returns_the_message(transport: Transport, step: str) -> None:
    async with Sink(times(1, step, "554 5.7.1 never")) as sink, relaying(transport, settings(sink)):
        send(transport)
        await until(lambda: len(inbox(transport)) == 1)
        assert queue(transport) == []
        assert b"554 5.7.1 never" in inbox(transport)[0]
        send(transport)  # the same or a new connection carries the next one
        await sink.wait_for(1)


@pytest.mark.parametrize(
    ("step", "reply"),
    [
        ("connect", "554 5.7.1 go away"),
        ("EHLO", "550 5.7.1 bad name"),
        ("MAIL", "530 5.7.0 authentication required"),
        ("RCPT", "552 too many recipients"),
        ("RCPT", "952 5.0.0 nonsense"),
        ("DATA", "250 what?"),
    ],
)
async def test_error_outside_of_the_message_bounces_nothing(transport: Transport, step: str, reply: str) -> None:
    def script(verb: str, command: str) -> str | None:
        return "502 no" if verb == "HELO" else failing(verb, command)

    failing = times(1, step, reply)
    async with Sink(script) as sink, relaying(transport, settings(sink)):
        send(transport)
        await sink.wait_for(1)
        await until(lambda: not queue(transport))
    assert inbox(transport) == []


@pytest.mark.parametrize("reply", ["451 4.3.0 busy", "454 4.7.0 no", "421 4.3.2 busy", "550 5.7.1 not now"])
async def test_temporary_error_to_ehlo_does_not_fall_back_to_helo(transport: Transport, reply: str) -> None:
    async with Sink(times(1, "EHLO", reply)) as sink, relaying(transport, settings(sink)):
        send(transport, octets=EIGHT_BIT)
        await sink.wait_for(1)
        await until(lambda: not queue(transport))
    assert not any(command.startswith("HELO") for command in sink.commands)
    assert inbox(transport) == []


async def test_surplus_recipients_are_sent_at_once_in_another_transaction(transport: Transport) -> None:
    sink = Sink()
    accepted = [0]

    def script(verb: str, command: str) -> str | None:
        if verb == "MAIL":
            accepted[0] = 0
        if verb == "RCPT":
            accepted[0] += 1
            return "452 4.5.3 too many" if accepted[0] > 2 else None
        return None

    sink.script = script
    async with sink, relaying(transport, settings(sink, first_retry=Seconds(300), longest_retry=Seconds(300))):
        send(transport, *(f"r{number}@far.test" for number in range(5)))
        await until(lambda: not queue(transport))
    assert [len(taken.addresses) for taken in sink.taken] == [2, 2, 1]


async def test_refusal_within_the_data_is_recorded(transport: Transport) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hasty\r\n")
        while line := await reader.readline():
            if line.startswith(b"DATA"):
                writer.write(b"354 go\r\n")
                await reader.readexactly(100_000)
                writer.write(b"552 5.3.4 enough\r\n")
                await writer.drain()
                await asyncio.sleep(0.2)
                writer.close()
                return
            writer.write(b"250 ok\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sink = Sink()
    sink.port = server.sockets[0].getsockname()[1]
    async with relaying(transport, settings(sink)):
        send(transport, octets=message(body="line\r\n" * 4_000_000))
        await until(lambda: len(inbox(transport)) == 1)
    server.close()
    assert b"552 5.3.4 enough" in inbox(transport)[0]


@pytest.mark.parametrize(
    ("step", "reply"),
    [
        ("EHLO", "250-sink\r\n250 8BITMIME\r\n550 5.3.0 nonsense"),
        ("MAIL", "250 2.1.0 ok\r\n550 5.3.0 nonsense"),
        ("RCPT", "250 2.1.5 ok\r\n550 5.3.0 nonsense"),
        ("RCPT", "550 5.1.1 no\r\n250 2.1.5 nonsense"),
        ("DATA", "354 go\r\n550 5.3.0 nonsense"),
        ("DATA", "550 5.3.0 nonsense\r\n354 go"),
        (".", "550 5.3.0 nonsense\r\n250 2.0.0 refused, or not"),
    ],
)
async def test_surplus_reply_bounces_nothing_and_ends_the_connection(
    transport: Transport, step: str, reply: str
) -> None:
    async with Sink(times(1, step, reply)) as sink, relaying(transport, settings(sink)):
        send(transport, DAVE, ERIN)
        await until(lambda: [row.attempts for row in queue(transport)] in ([1, 1], []))
        send(transport)
        await until(lambda: not queue(transport))
    assert inbox(transport) == []
    assert sink.connections >= 2
    assert sorted(len(taken.addresses) for taken in sink.taken) == [1, 2]


async def test_surplus_reply_after_acceptance_keeps_the_result(transport: Transport) -> None:
    reply = "250 2.0.0 taken\r\n550 5.3.0 nonsense"
    async with Sink(times(1, ".", reply)) as sink, relaying(transport, settings(sink)):
        for number in (1, 2):
            send(transport)
            await sink.wait_for(number)
            await until(lambda: not queue(transport))
    assert inbox(transport) == []
    assert (len(sink.taken), sink.connections) == (2, 2)


async def test_reply_within_the_data_is_not_the_result(transport: Transport) -> None:
    """Unlike the reply of a server that disconnects: see above."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(b"220 confused\r\n")
        while line := await reader.readline():
            if line.startswith(b"DATA"):
                writer.write(b"354 go\r\n")
                if connections == 1:
                    await reader.readexactly(100_000)
                    writer.write(b"550 5.3.0 nonsense\r\n")
                    await asyncio.sleep(0.1)
                while await reader.readline() not in (b".\r\n", b""):
                    pass
            writer.write(b"250 ok\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sink = Sink()
    sink.port = server.sockets[0].getsockname()[1]
    async with relaying(transport, settings(sink)):
        send(transport, octets=message(body=("x" * 900 + "\r\n") * 20_000))
        await until(lambda: not queue(transport))
    server.close()
    assert inbox(transport) == []
    assert connections == 2


async def test_unreadable_stored_message_does_not_affect_others(
    transport: Transport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Sink() as sink:
        bad = send(transport)
        [path] = (tmp_path / "store" / "messages").rglob(f"{bad.message_id}.md")
        content = path.read_bytes()
        path.unlink()
        send(transport)
        async with relaying(transport, settings(sink, first_retry=Seconds(60), longest_retry=Seconds(60))):
            await sink.wait_for(1)
            await until(lambda: [row.attempts for row in queue(transport)] == [1])
    [left] = queue(transport)
    assert left.message_id == bad.message_id
    assert left.last_status == "451 4.3.0 the stored message cannot be read"
    assert path.name in caplog.text
    path.write_bytes(content)
    path.chmod(0o444)


async def test_relay_ends_at_once_without_a_smarthost(transport: Transport) -> None:
    send(transport)
    await relay.run(transport, RelaySettings(), asyncio.Event())
    assert len(queue(transport)) == 1


async def test_records_of_results_name_the_relay(transport: Transport) -> None:
    async with Sink() as sink, relaying(transport, settings(sink)):
        send(transport)
        await until(lambda: not queue(transport))
    assert actors(transport.root, "queue-finish") == [Actor("", "relay")]
