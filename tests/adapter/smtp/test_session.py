"""Sessions: greeting, every command in every state, pipelining, BDAT and LMTP, and octets stored as they were sent."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from adapter.config.schema import Limits, Settings
from protocol.smtp import states
from protocol.smtp.states import Phase, Service, SessionState
from tests.support.messages import message
from tests.support.smtpd import HOST, PASSWORD, ConnectionEnded, Running, SmtpClient, make_store, serving
from tests.support.stores import ADA, BOB, rows
from tests.support.waiting import until


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store") as running:
        yield running


async def test_greeting_names_the_host_and_ehlo_the_extensions(server: Running) -> None:
    client = await server.connect()
    greeting = await client.reply()
    assert greeting.code == 220
    assert greeting.text.startswith(HOST)
    offered = (await client.ask("EHLO client.test")).lines
    assert offered[0] == HOST
    assert {line.split()[0] for line in offered[1:]} == {
        "PIPELINING", "SIZE", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES", "CHUNKING", "BINARYMIME", "DSN", "LIMITS",
    }  # fmt: skip
    assert "SIZE 52428800" in offered
    assert await client.codes("HELO client.test", "NOOP", "VRFY ada", "EXPN all", "HELP", "QUIT") == [
        250, 250, 252, 502, 214, 221,
    ]  # fmt: skip
    assert await client.ended()


async def test_message_is_stored_with_trace_fields_and_its_own_octets(server: Running) -> None:
    client = await server.hello()
    octets = message("Grüße", "A line\r\n.stuffed\r\n..twice\r\n")
    wire = octets.replace(b"\r\n.", b"\r\n..")
    reply = await client.mail(wire, ADA)
    assert reply.code == 250
    (stored,) = server.inbox()
    assert stored.endswith(octets)
    trace = stored.removesuffix(octets).decode()
    assert trace.startswith("Return-Path: <bob@other.test>\r\nReceived: from client.test (unknown [127.0.0.1])\r\n")
    assert re.search(rf"by {HOST} with ESMTP id \S+\r\n\tfor <ada@example.test>;\r\n", trace)


async def test_all_recipients_share_one_file(server: Running, tmp_path: Path) -> None:
    client = await server.hello()
    assert (await client.mail(message(), ADA, BOB, ADA)).code == 250
    (ada,), (bob,) = rows(server.transport, address=ADA), rows(server.transport, address=BOB)
    assert ada.message_id == bob.message_id
    assert len(list((tmp_path / "store" / "messages").rglob("*.md"))) == 1
    assert b"for <" not in server.inbox()[0]


async def test_null_sender_gets_an_empty_return_path(server: Running) -> None:
    client = await server.hello()
    assert (await client.mail(message(), ADA, sender="")).code == 250
    assert server.inbox()[0].startswith(b"Return-Path: <>\r\n")


async def test_mail_for_other_domains_is_refused(server: Running) -> None:
    client = await server.hello()
    assert (await client.ask("MAIL FROM:<x@y.test>")).code == 250
    unknown = await client.ask("RCPT TO:<nobody@example.test>")
    assert (unknown.code, unknown.enhanced) == (550, "5.1.1")
    relay = await client.ask("RCPT TO:<dave@elsewhere.test>")
    assert (relay.code, relay.enhanced) == (550, "5.7.1")
    for spelling in ("ada%elsewhere.test@example.test", "@elsewhere.test:x@elsewhere.test", '"a@b"@elsewhere.test'):
        assert (await client.ask(f"RCPT TO:<{spelling}>")).code == 550
    assert (await client.ask("DATA")).code == 503


async def test_session_is_usable_after_any_refusal(server: Running) -> None:
    client = await server.hello()
    for line in (
        "",
        "BOGUS",
        "MAIL",
        "MAIL FROM:ada",
        "MAIL FROM:<a@b.test> FOO=1",
        "RCPT TO:<ada@example.test>",
        "x" * 5000,
    ):
        assert (await client.ask(line)).code >= 500
    assert (await client.mail(message())).code == 250


async def test_mail_and_rcpt_parameters_are_checked(server: Running) -> None:
    client = await server.hello()
    assert await client.codes(
        "MAIL FROM:<x@y.test> RET=HDRS ENVID=QQ314159 SIZE=100 BODY=8BITMIME",
        "RCPT TO:<ada@example.test> NOTIFY=FAILURE,DELAY ORCPT=rfc822;Ada@Example.Test",
        "RCPT TO:<ada@example.test> NOTIFY=never",
        "RCPT TO:<ada@example.test> NOTIFY=SOMETIMES",
        "RCPT TO:<ada@example.test> SIZE=1",
    ) == [250, 250, 250, 501, 555]  # fmt: skip


async def test_long_lines_are_kept(server: Running) -> None:
    client = await server.hello()
    octets = message(body="x" * 100_000 + "\r\n")
    assert (await client.mail(octets)).code == 250
    assert server.inbox()[0].endswith(octets)


async def test_half_closed_client_still_gets_its_reply(server: Running) -> None:
    client = await server.hello()
    client.send(b"MAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\nDATA\r\n")
    assert [(await client.reply()).code for _ in range(3)] == [250, 250, 354]
    client.send(message() + b".\r\n")
    client.writer.write_eof()
    assert (await client.reply()).code == 250
    assert await client.ended()
    assert len(server.inbox()) == 1


async def test_complete_message_of_a_client_that_disconnects_is_delivered(server: Running) -> None:
    client = await server.hello()
    client.send(b"MAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\nDATA\r\n")
    for _ in range(3):
        await client.reply()
    client.send(message() + b".\r\n")
    await client.writer.drain()
    client.writer.transport.abort()
    await until(lambda: rows(server.transport))
    assert len(server.inbox()) == 1


async def test_incomplete_message_of_a_client_that_disconnects_leaves_nothing(server: Running, tmp_path: Path) -> None:
    client = await server.hello()
    client.send(b"MAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\nDATA\r\n")
    for _ in range(3):
        await client.reply()
    client.send(message() + b"x" * 600_000)
    await client.writer.drain()
    client.close()
    await until(lambda: not len(server.services.connections))
    assert server.inbox() == []
    assert not [path for path in (tmp_path / "store" / "staging").rglob("*") if path.is_file()]


# --- every command in every state -----------------------------------------------------------------------------------

_HELLO = ("EHLO client.test", 250)
_LOGIN = ("AUTH PLAIN " + base64.b64encode(f"\0{ADA}\0{PASSWORD}".encode()).decode(), 235)
_MAIL = ("MAIL FROM:<ada@example.test>", 250)
_RCPT = ("RCPT TO:<ada@example.test>", 250)
_TO_PHASE = {
    Phase.CONNECTED: [],
    Phase.GREETED: [_HELLO],
    Phase.MAIL: [_HELLO, _MAIL],
    Phase.RCPT: [_HELLO, _MAIL, _RCPT],
    Phase.CHUNKS: [_HELLO, _MAIL, _RCPT, ("BDAT 5\r\nA:b\r\n", 250)],
    Phase.BROKEN: [_HELLO, _MAIL, _RCPT, ("BDAT 26\r\nReceived:a\r\nReceived:b\r\n\r\n", 554)],
}
_ARGUMENTS = {
    "HELO": "HELO c.test", "EHLO": "EHLO c.test", "LHLO": "LHLO c.test", "MAIL": _MAIL[0],
    "RCPT": _RCPT[0], "BDAT": "BDAT 2\r\nxy", "VRFY": "VRFY ada", "AUTH": "AUTH PLAIN AGFAYgBj",
    "XCLIENT": "XCLIENT ADDR=192.0.2.1", "EXPN": "EXPN x",
}  # fmt: skip
_COMMANDS = [*states.RULES, "TURN"]
_SERVICES = {"smtp": Service.MX, "lmtp": Service.LMTP, "submission": Service.SUBMISSION}
#: The listener, whether the client has logged in, and the phases that can be reached so.
_WAYS = [
    *((kind, False, phase) for kind in ("smtp", "lmtp") for phase in Phase),
    *(("submission", False, phase) for phase in (Phase.CONNECTED, Phase.GREETED)),
    *(("submission", True, phase) for phase in Phase if phase is not Phase.CONNECTED),
]


def _expected(service: Service, phase: Phase, command: str, logged_in: bool) -> int:
    mechanisms = ("PLAIN",) if service is Service.SUBMISSION else ()
    session = SessionState(service, plaintext_auth=True, mechanisms=mechanisms, authenticated=logged_in)
    session.extended = phase is not Phase.CONNECTED
    session.phase = phase
    refusal = states.refusal(session, command)
    if refusal is not None:
        return refusal.code
    return {"DATA": 354, "VRFY": 252, "HELP": 214, "QUIT": 221, "AUTH": 535}.get(command, 250)


@pytest.mark.parametrize(("kind", "logged_in", "phase"), _WAYS)
@pytest.mark.parametrize("how", ["one packet", "byte by byte"])
async def test_every_command_in_every_state_gets_the_reply_of_the_table(
    tmp_path: Path, kind: str, logged_in: bool, phase: Phase, how: str
) -> None:
    """The replies follow from the table of states alone, however the octets are cut."""
    service = _SERVICES[kind]
    before = _TO_PHASE[phase]
    if logged_in:
        before = [_HELLO, _LOGIN, *before[1:]]

    async def one(server: Running, command: str) -> None:
        client = await server.connect(kind)
        await client.reply()
        lines = [*(line for line, _ in before), _ARGUMENTS.get(command, command), "NOOP"]
        octets = "".join(line if line.startswith("BDAT") else f"{line}\r\n" for line in lines).encode()
        if kind == "lmtp":
            octets = octets.replace(b"EHLO client.test", b"LHLO client.test")
        if how == "one packet":
            client.send(octets)
        else:
            for octet in octets:
                client.send(bytes((octet,)))
                await client.writer.drain()
                await asyncio.sleep(0)
        for line, code in before:
            assert (await client.reply()).code == code, line
        expected = _expected(service, phase, command, logged_in)
        assert (await client.reply()).code == expected, command
        last = 250
        if expected == 354:
            client.send(b".\r\n")  # "NOOP" was the message; it has no From
            last = 550 if logged_in else 250
        if command == "QUIT":
            with pytest.raises(ConnectionEnded):
                await client.reply()
        else:
            assert (await client.reply()).code == last, command
        client.close()

    make_store(tmp_path / "store")
    async with serving(tmp_path / "store", Settings(limits=Limits(hops=1))) as server:
        await asyncio.gather(*(one(server, command) for command in _COMMANDS))


async def test_replies_to_pipelined_commands_are_sent_in_one_packet(server: Running) -> None:
    client = await server.hello()
    client.send(b"MAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\nRCPT TO:<bob@example.test>\r\nDATA\r\n")
    data = await client.reader.read(65536)
    assert data.count(b"\r\n") == 4


async def test_pipelined_transactions_are_delivered(server: Running) -> None:
    """Two whole transactions and QUIT in one packet, with the message by BDAT."""
    client = await server.hello()
    parts = []
    for number in range(2):
        octets = message(f"Number {number}")
        parts.append(b"MAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\nBDAT %d LAST\r\n" % len(octets) + octets)
    client.send(b"".join(parts) + b"QUIT\r\n")
    assert [(await client.reply()).code for _ in range(7)] == [250] * 6 + [221]
    assert [octets.count(b"Subject: Number") for octets in server.inbox()] == [1, 1]


# --- BDAT ------------------------------------------------------------------------------------------------------------


async def test_bdat_delivers_binary_content_in_chunks(server: Running) -> None:
    client = await server.hello()
    octets = b"Subject: binary\r\nContent-Transfer-Encoding: binary\r\n\r\n" + bytes(range(256)) * 3
    assert await client.codes("MAIL FROM:<x@y.test> BODY=BINARYMIME", "RCPT TO:<ada@example.test>", "DATA") == [
        250, 250, 503,
    ]  # fmt: skip
    for start in range(0, len(octets), 100):
        piece = octets[start : start + 100]
        client.send(b"BDAT %d\r\n" % len(piece) + piece)
        assert (await client.reply()).code == 250
    assert (await client.ask("BDAT 0 LAST")).code == 250
    assert server.inbox()[0].endswith(octets)


async def test_octets_of_a_refused_bdat_are_skipped(server: Running) -> None:
    client = await server.hello()
    client.send(b"BDAT 10\r\nQUIT\r\nQUIT")
    assert (await client.reply()).code == 503
    assert (await client.ask("NOOP")).code == 250
    assert (await client.ask("BDAT ten")).code == 521
    assert await client.ended()


async def test_refused_chunk_blocks_the_transaction_until_rset(server: Running) -> None:
    client = await server.hello()
    assert await client.codes("MAIL FROM:<x@y.test>", "RCPT TO:<ada@example.test>") == [250, 250]
    client.send(b"BDAT 12\r\nA: b\n\nhello\n")
    assert (await client.reply()).enhanced == "5.6.11"
    client.send(b"BDAT 2 LAST\r\nxy")
    assert (await client.reply()).code == 503
    assert await client.codes("RSET", "NOOP") == [250, 250]
    assert server.inbox() == []


# --- LMTP ------------------------------------------------------------------------------------------------------------


async def test_lmtp_replies_once_for_each_recipient(server: Running) -> None:
    client = await server.hello("lmtp")
    assert await client.codes(
        "MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", "RCPT TO:<nobody@example.test>", f"RCPT TO:<{BOB}>",
        f"RCPT TO:<{ADA}>", "DATA",
    ) == [250, 250, 550, 250, 250, 354]  # fmt: skip
    client.send(message() + b".\r\n")
    replies = [await client.reply() for _ in range(3)]
    assert [reply.code for reply in replies] == [250, 250, 250]
    assert [re.findall("<(.*?)>", reply.text)[0] for reply in replies] == [ADA, BOB, ADA]
    assert (await client.ask("QUIT")).code == 221
    assert len(server.inbox()) == len(server.inbox(BOB)) == 1


async def test_lmtp_refuses_a_message_once_for_each_recipient(server: Running) -> None:
    client = await server.hello("lmtp")
    hops = b"Received: x\r\n" * 101
    assert await client.codes("MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", f"RCPT TO:<{BOB}>", "DATA") == [
        250,
        250,
        250,
        354,
    ]
    client.send(hops + b"\r\n.\r\n")
    assert [(await client.reply()).enhanced for _ in range(2)] == ["5.4.6", "5.4.6"]
    assert (await client.ask("NOOP")).code == 250


async def test_lmtp_leaves_delivery_reports_to_the_client(server: Running) -> None:
    client = await server.connect("lmtp")
    await client.reply()
    offered = (await client.ask("LHLO client.test")).text.split()
    assert {"PIPELINING", "ENHANCEDSTATUSCODES"} <= set(offered)
    assert "DSN" not in offered
    assert (await client.ask("MAIL FROM:<x@y.test> RET=FULL")).code == 555


async def test_lmtp_replies_once_for_each_recipient_of_bdat(server: Running) -> None:
    client = await server.hello("lmtp")
    assert await client.codes("MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", f"RCPT TO:<{BOB}>") == [250, 250, 250]
    octets = message()
    client.send(b"BDAT 5\r\n" + octets[:5])
    assert (await client.reply()).code == 250
    client.send(b"BDAT %d LAST\r\n" % (len(octets) - 5) + octets[5:])
    assert [(await client.reply()).code for _ in range(2)] == [250, 250]
    assert server.inbox(BOB)[0].endswith(octets)


async def test_recipient_deregistered_before_delivery_gets_its_own_reply(server: Running) -> None:
    from adapter.transport import operations as op

    client = await server.hello("lmtp")
    assert await client.codes("MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", f"RCPT TO:<{BOB}>", "DATA") == [
        250,
        250,
        250,
        354,
    ]
    await asyncio.to_thread(server.transport.run, op.Deregister(BOB))
    client.send(message() + b".\r\n")
    first, second = await client.reply(), await client.reply()
    assert (first.code, second.code, second.enhanced) == (250, 550, "5.2.1")
    smtp = await server.hello("smtp")
    assert (await smtp.ask("MAIL FROM:<x@y.test>")).code == 250


async def test_smtp_defers_the_message_if_only_some_recipients_have_it(server: Running) -> None:
    from adapter.transport import operations as op

    client = await server.hello()
    assert await client.codes("MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", f"RCPT TO:<{BOB}>", "DATA") == [
        250,
        250,
        250,
        354,
    ]
    await asyncio.to_thread(server.transport.run, op.Deregister(BOB))
    client.send(message() + b".\r\n")
    assert (await client.reply()).code == 451


async def test_lmtp_over_a_unix_socket(tmp_path: Path) -> None:
    from adapter.net import endpoints
    from adapter.server.listeners import Acceptor, ConnectionFactory

    make_store(tmp_path / "store")
    async with serving(tmp_path / "store", kinds=()) as running:
        path = tmp_path / "lmtp.sock"
        listener = endpoints.listen(endpoints.parse("lmtp", str(path)), backlog=10, socket_mode=0o600)
        server = Acceptor(listener, ConnectionFactory(running.services).for_listener("lmtp"))
        assert str(listener.endpoint) == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        client = SmtpClient(*await asyncio.open_unix_connection(str(path)))
        await client.reply()
        assert (await client.ask("LHLO here")).code == 250
        assert (await client.mail(message())).code == 250
        assert b"Received: from here (local)\r\n" in running.inbox()[0]
        client.close()
        server.close()
