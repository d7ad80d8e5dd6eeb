"""Limits, slow and hostile peers, and access to mail."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import os
import socket
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapter.accounts.credentials import Credentials
from adapter.net import networks
from adapter.read_model.cached_folder import cached
from adapter.read_model.mailboxes import MailboxCache
from adapter.transport import operations as op
from adapter.transport.staging import Spool
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.imapd import PASSWORD, ImapClient, Running, Start, make_store, serving
from tests.support.mail.corpus import varied_message
from tests.support.mailboxes import notified
from tests.support.stores import ADA, BOB, append, rows
from tests.support.waiting import PATIENCE, until

# --- slow peers and large answers ------------------------------------------------------------------------------------


async def test_slow_reader_costs_little_memory_and_blocks_no_session(start: Start) -> None:
    async with start() as server:
        large = b"Subject: large\r\n\r\n" + os.urandom(30 << 20).hex()[: 40 << 20].encode() + b"\r\n"
        await asyncio.to_thread(append, server.transport, "INBOX", large)
        slow = await server.login(ADA)
        await slow.ok("SELECT INBOX")
        # A buffer as small as that of a real connection, so that the kernel buffers little.
        slow._writer.get_extra_info("socket").setsockopt(1, 8, 1 << 16)
        slow._reader._limit = 1 << 16  # type: ignore[attr-defined]
        tag = slow.start("FETCH 1 BODY.PEEK[]")
        connection = server.session.connection
        await until(lambda: connection.write_blocked_since is not None)
        assert connection.unsent_octets < 2 << 20
        other = await server.login(ADA)
        await other.ok("NOOP")
        await other.ok("SELECT INBOX")
        assert connection.write_blocked_since is not None
        head = await slow.line()
        assert head == b"* 1 FETCH (BODY[] {%d}\r\n" % len(large)
        assert await slow._reader.readexactly(len(large)) == large
        assert await slow.line() == b")\r\n"
        assert (await slow.finish(tag))[1].startswith(b"OK")
        await slow.close()
        await other.close()


@pytest.mark.setting("imap.send")
async def test_client_that_stops_reading_is_disconnected(start: Start) -> None:
    async with start(imap={"send": 0.5, "progress": 1.0}) as server:
        large = b"Subject: large\r\n\r\n" + b"x" * (30 << 20)
        await asyncio.to_thread(append, server.transport, "INBOX", large)
        stuck = await server.login(ADA)
        await stuck.ok("SELECT INBOX")
        stuck._reader._limit = 1 << 10  # type: ignore[attr-defined]
        stuck.start("FETCH 1 BODY.PEEK[]")
        assert await server.services.connections.are_gone_within(PATIENCE)
        await stuck.close()


async def test_kernel_detects_a_vanished_peer(start: Start) -> None:
    """It does not acknowledge sent data, for which the kernel has a timeout."""
    async with start(imap={"keep_alive": 0.2}) as server:
        client = await server.login(ADA)
        stream = server.session.connection._socket
        assert stream is not None
        opened = stream.get_extra_info("socket")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 300_000
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.start("IDLE")  # without a mailbox, keep-alives are sent, too
        assert (await client.line()).startswith(b"+ ")
        assert await client.line() == b"* OK Still here\r\n"
        await client.close()


async def test_a_thousand_commands_in_one_packet(start: Start) -> None:
    async with start() as server:
        client = await server.login(ADA)
        client.send(b"".join(b"p%d NOOP\r\n" % number for number in range(1000)))
        for number in range(1000):
            assert (await client.line()).startswith(b"p%d OK" % number)
        await client.close()


# --- hostile peers ---------------------------------------------------------------------------------------------------


async def test_compression_bomb_is_read_in_pieces(start: Start) -> None:
    async with start() as server:
        client = await server.login(ADA)
        await client.ok("COMPRESS DEFLATE")
        packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        bomb = packer.compress(b"a NOOP " + b" " * (200 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)
        assert len(bomb) < 1 << 20
        client.start_compression()
        client._deflate = None
        connection = server.session.connection
        other = await server.login(ADA)
        client.send(bomb)
        for _ in range(50):
            await other.ok("NOOP")
            assert connection.unhandled_octets < 1 << 20
        client.send(packer.compress(b"\r\nb NOOP\r\n") + packer.flush(zlib.Z_SYNC_FLUSH))
        assert (await client.line()).startswith(b"a BAD Command line is too long")
        assert (await client.line()).startswith(b"b OK")
        await client.close()
        await other.close()


async def test_invalid_compressed_data_closes_the_connection(start: Start) -> None:
    async with start() as server:
        client = await server.login(ADA)
        await client.ok("COMPRESS DEFLATE")
        client.start_compression()
        client._deflate = None
        client.send(b"\xff\xff\xff\xff not deflate at all")
        assert (await client.line()).startswith(b"* BYE Compressed data is damaged")
        assert await client.line() == b""
        await client.close()


async def test_oversized_non_synchronising_literal_is_skipped(start: Start) -> None:
    async with start(limits={"message_size": 1000}) as server:
        client = await server.login(ADA)
        assert (await client.append("INBOX", b"x" * 200_000)).startswith(b"NO [TOOBIG]")
        assert (await client.append("INBOX", b"A: b\r\n\r\n")).startswith(b"OK [APPENDUID")
        await client.close()


@pytest.mark.setting("imap.literal_plus")
async def test_literal_minus(start: Start) -> None:
    async with start(imap={"literal_plus": False}) as server:
        client = await server.connect()
        assert b" LITERAL- " in await client.line()
        await client.ok(f"LOGIN {ADA} {PASSWORD}")
        assert (await client.append("INBOX", b"A: b\r\n\r\n" + b"x" * 5000)).startswith(b"BAD")
        assert (await client.append("INBOX", b"A: b\r\n\r\n")).startswith(b"OK")
        await client.close()


async def test_cost_of_huge_sets_depends_on_existing_messages(start: Start) -> None:
    async with start() as server:
        await asyncio.to_thread(append, server.transport, "INBOX", *map(varied_message, range(5)))
        client = await server.login(ADA)
        await client.ok("SELECT INBOX")
        many = ",".join(f"{number}:4294967295" for number in range(1, 5))
        assert len(await client.ok(f"UID FETCH {many} (FLAGS)")) == 5
        await client.ok("UID STORE 1:4294967295 +FLAGS.SILENT (\\Seen)")
        await client.ok("UID COPY 1:4294967295 Trash")
        await client.close()


# --- limits on connections and logins --------------------------------------------------------------------------------


async def test_connections_of_one_user(start: Start) -> None:
    async with start(limits={"connections_per_user": 2}) as server:
        clients = [await server.login(ADA) for _ in range(2)]
        third = await server.connect()
        await third.line()
        assert (await third.run(f"LOGIN {ADA} {PASSWORD}"))[1].startswith(b"NO [LIMIT]")
        await third.ok(f"LOGIN {BOB} {PASSWORD}")
        await clients[0].ok("LOGOUT")
        await clients[0].close()
        clients.append(await server.login(ADA))
        for client in (*clients[1:], third):
            await client.close()


async def test_connections_of_one_address(start: Start) -> None:
    async with start(limits={"connections_per_ip": 2, "exempt": ()}) as server:
        clients = [await server.connect() for _ in range(3)]
        assert (await clients[0].line()).startswith(b"* OK")
        assert (await clients[1].line()).startswith(b"* OK")
        assert (await clients[2].line()).startswith(b"* BYE [UNAVAILABLE] Too many connections")
        assert await clients[2].line() == b""
        for client in clients:
            await client.close()


async def test_many_connections_at_once_log_in_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password check is slow: one check serves all of them."""
    verify, checked = Credentials.verify, []

    def counted(self: Credentials, address: str, password: str) -> bool:
        checked.append(address)
        return verify(self, address, password)

    monkeypatch.setattr(Credentials, "verify", counted)
    async with start() as server:
        clients = await asyncio.gather(*(server.login(ADA) for _ in range(12)))
        assert checked == [ADA]
        for client in clients:
            await client.close()


async def test_login_timeout_applies_to_clients_that_send_commands(start: Start) -> None:
    async with start(imap={"login_time": 0.4}) as server:
        client = await server.connect()
        await client.line()
        line = b"a OK"
        while line.startswith(b"a OK"):
            client.send(b"a NOOP\r\n")
            line = await client.line()
        assert line.startswith(b"* BYE Login took too long")
        await client.close()


async def test_password_guessing_is_delayed_and_disconnected(start: Start) -> None:
    async with start(login={"free_failures": 1, "delay": 0.2}, imap={"bad_commands": 3}) as server:
        client = await server.connect()
        await client.line()
        started = time.perf_counter()
        for guess in ("a", "b"):
            assert (await client.run(f"LOGIN {ADA} {guess}"))[1].startswith(b"NO [AUTHENTICATIONFAILED]")
        assert time.perf_counter() - started > 0.2
        client.start(f"LOGIN {ADA} c")
        assert (await client.line()).startswith(b"* BYE")
        await client.close()


async def test_no_password_without_tls(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "is_loopback", lambda peer: False)
    async with start() as server:
        client = await server.connect()
        greeting = await client.line()
        assert b" LOGINDISABLED " in greeting
        assert b"AUTH=PLAIN" not in greeting
        assert b"AUTH=SCRAM-SHA-256" in greeting
        assert (await client.run(f"LOGIN {ADA} {PASSWORD}"))[1].startswith(b"NO [PRIVACYREQUIRED]")
        assert (await client.run("AUTHENTICATE PLAIN AGEAYg=="))[1].startswith(b"NO")
        await _scram(client)
        await client.ok("SELECT INBOX")
        await client.close()


async def _scram(client: ImapClient) -> None:
    """Log in as a client of RFC 7677."""
    first = f"n={ADA.replace('@', '@')},r=clientnonce"
    client.send(b"s AUTHENTICATE SCRAM-SHA-256 " + base64.b64encode(f"n,,{first}".encode()) + b"\r\n")
    challenge = base64.b64decode((await client.line()).removeprefix(b"+ ")).decode()
    values = dict(part.split("=", 1) for part in challenge.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), base64.b64decode(values["s"]), int(values["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    bare = f"c=biws,r={values['r']}"
    message = f"{first},{challenge},{bare}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    client.send(base64.b64encode(f"{bare},p={base64.b64encode(proof).decode()}".encode()) + b"\r\n")
    final = base64.b64decode((await client.line()).removeprefix(b"+ ")).decode()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    assert final == "v=" + base64.b64encode(hmac.digest(server_key, message, "sha256")).decode()
    client.send(b"\r\n")
    assert (await client.line()).startswith(b"s OK [CAPABILITY")


# --- access to mail -------------------------------------------------------------------------------------------------


async def test_account_cannot_reach_the_mail_of_others(start: Start) -> None:
    async with start() as server:
        (placed,) = await asyncio.to_thread(append, server.transport, "INBOX", varied_message(1), address=BOB)
        (row,) = await asyncio.to_thread(rows, server.transport, "INBOX", BOB)
        client = await server.login(ADA)
        for name in (
            f"../{BOB}/INBOX",
            f"/{BOB}/INBOX",
            f"user/{BOB}",
            f"~{BOB}/INBOX",
            f"#user.{BOB}",
            str(placed.folder),
        ):
            assert (await client.run(f'SELECT "{name}"'))[1].startswith(b"NO")
            assert (await client.run(f'STATUS "{name}" (MESSAGES)'))[1].startswith(b"NO")
        await client.ok("SELECT INBOX")
        assert await client.ok(f"UID SEARCH EMAILID {row.message_id}") == [b"* SEARCH"]
        assert await client.ok(f"UID SEARCH THREADID {row.thread_id}") == [b"* SEARCH"]
        assert await client.ok("UID FETCH 1:* (BODY[])") == []
        listed = await client.ok('LIST "" "*"')
        assert not any(b"bob" in line for line in listed)
        await client.close()


async def test_log_does_not_contain_client_input(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "adapter")
    async with start() as server:
        await asyncio.to_thread(append, server.transport, "INBOX", varied_message(1))
        client = await server.login(ADA)
        caplog.clear()
        await client.ok("SELECT INBOX")
        await client.ok("CREATE Secret")
        for command in (
            "CREATE Secret", "CREATE a//Secret", "DELETE Secret2", "RENAME Secret2 x", "RENAME Trash Secret",
            "RENAME Secret Secret/x", "SELECT Secret2", "STATUS Secret2 (MESSAGES)", "EXAMINE a//Secret",
            "APPEND Secret2 {3}", "SUBSCRIBE a//Secret", "SECRET", "LIST (SECRET) a b", "SEARCH SECRET",
        ):  # fmt: skip
            assert not (await client.run(command))[1].startswith(b"OK"), command
        await client.ok("SELECT INBOX")
        for command in ("COPY 1 Secret2", "UID MOVE 1 Secret2", "STORE 1 FLAGS (secret" + "t" * 200 + ")"):
            assert (await client.run(command))[1].startswith(b"NO"), command
        for command in ("SEARCH TEXT secret", "STORE 1 FLAGS (secret)", "FETCH 1 BODY[HEADER.FIELDS (Secret)]"):
            await client.ok(command)
        await client.close()
        assert await server.services.connections.are_gone_within(PATIENCE)
    assert "SELECT in " in caplog.text
    assert "secret" not in caplog.text.lower()


async def test_session_of_a_closed_account_can_do_nothing(start: Start) -> None:
    async with start() as server:
        client = await server.login(ADA)
        await client.ok("SELECT INBOX")
        await notified(server.transport, lambda: server.transport.run(op.Deregister(ADA)))
        assert (await client.run("STATUS INBOX (MESSAGES)"))[1].startswith(b"NO")
        assert (await client.append("INBOX", b"A: b\r\n\r\n")).startswith(b"NO")
        again = await server.connect()
        await again.line()
        assert (await again.run(f"LOGIN {ADA} {PASSWORD}"))[1].startswith(b"NO [AUTHENTICATIONFAILED]")
        await client.close()
        await again.close()


# --- endings ---------------------------------------------------------------------------------------------------------


async def test_append_in_flight_is_completed_before_shutdown(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await asyncio.to_thread(make_store, root, ADA)
    async with serving(root) as server:
        client = await server.login(ADA)
        client.send(b"a APPEND INBOX {20+}\r\nSubject: x\r\n")
        await until(lambda: server.session.pending_append is not None)
        closing = asyncio.create_task(server.keeper.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
        client.send(b"\r\nbody\r\n\r\n")
        assert (await client.line()).startswith(b"a OK [APPENDUID")
        assert (await client.line()).startswith(b"* BYE [UNAVAILABLE]")
        assert await client.line() == b""
        await closing
        await client.close()
    with Transport.open(root) as transport:
        assert len(rows(transport)) == 1


async def test_connection_lost_during_append_leaves_nothing(start: Start) -> None:
    async with start() as server:
        client = await server.login(ADA)
        client.send(b"a APPEND INBOX {900000+}\r\n" + b"x" * 500_000)
        await asyncio.sleep(0.2)
        await client.close()
        assert await server.services.connections.are_gone_within(PATIENCE)
        assert await asyncio.to_thread(rows, server.transport) == []


async def test_full_disk_during_append_refuses_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Spool, data: bytes) -> None:
        raise MailError(Reason.DISK_FULL)

    async with start() as server:
        client = await server.login(ADA)
        monkeypatch.setattr(Spool, "write", full)
        assert (await client.append("INBOX", b"x" * 600_000)).startswith(b"NO [UNAVAILABLE] Insufficient storage")
        monkeypatch.undo()
        assert (await client.append("INBOX", b"A: b\r\n\r\n" + b"x" * 600_000)).startswith(b"OK")
        await client.close()


async def test_the_copy_of_a_submitted_message_is_not_stored_twice(start: Start) -> None:
    async with start() as server:
        text = b"From: ada@example.test\r\nMessage-ID: <1@example.test>\r\nSubject: x\r\n\r\nHello\r\n"
        staged = await asyncio.to_thread(server.transport.stage, b"Received: from client\r\n" + text)
        delivery = await server.transport.commit(op.Deliver(staged, ADA, [BOB], keep_sent=True))
        assert delivery.sent is not None
        client = await server.login(ADA)
        status = await client.append("Sent", text, "(\\Seen)")
        assert status.startswith(b"OK [APPENDUID %d %d]" % (delivery.sent.uidvalidity, delivery.sent.uid))
        assert len(await asyncio.to_thread(rows, server.transport, "Sent")) == 1
        assert (await client.append("Sent", text.replace(b"Hello", b"Other"))).startswith(b"OK")
        assert len(await asyncio.to_thread(rows, server.transport, "Sent")) == 2
        await client.close()


@pytest.mark.setting("imap.cache_folders", "imap.cache_bodies", "imap.cache_texts", "imap.cache_time")
async def test_caches_keep_to_the_settings(start: Start) -> None:
    limits = {"cache_folders": 6000, "cache_bodies": 20_000, "cache_texts": 1000, "cache_time": 3600.0}
    async with start(imap=limits) as server:
        await asyncio.to_thread(append, server.transport, "INBOX", *[varied_message(number) for number in range(40)])
        client = await server.login()
        await client.ok("SELECT INBOX")
        await client.ok("FETCH 1:* (ENVELOPE BODY.PEEK[])")
        await client.ok("SEARCH BODY nothing")
        mailboxes = server.session.reader
        assert isinstance(mailboxes, MailboxCache)
        state = cached(server.session.mailbox.folder)
        assert 0 < mailboxes._bodies._used_bytes <= 20_000
        assert mailboxes._texts._used_bytes <= 1000
        assert state.cost + state.derived_cost <= 6000
        _reload(server, cache_folders=1 << 20)
        await client.ok("FETCH 1:* (ENVELOPE)")
        assert state.derived_cost > 6000
        _reload(server, cache_time=0.1)
        await until(lambda: mailboxes._bodies._used_bytes + state.derived_cost == 0)
        await client.close()


def _reload(server: Running, **changed: Any) -> None:
    imap = replace(server.services.settings.imap, **changed)
    server.services.settings = replace(server.services.settings, imap=imap)
    for changes in server.services.after_reload:
        changes()
