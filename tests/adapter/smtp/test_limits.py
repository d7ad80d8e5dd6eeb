"""Every limit and its reply; exempt peers are not counted; internal errors are temporary and reveal nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from adapter.config.loader import Seconds, Size
from adapter.config.schema import Limits, Settings
from adapter.smtp.message import ReceiveTimer
from adapter.store import disk
from adapter.store.effects import Actor
from adapter.transport.operations.base import Operation
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.certificates import make_certificate
from tests.support.messages import message
from tests.support.smtpd import ConnectionEnded, SmtpClient, make_store, serving, trusting
from tests.support.stores import ADA, BOB
from tests.support.waiting import PATIENCE, until


def limited(**limits: Any) -> Settings:
    """Settings with limits that also apply to loopback."""
    return Settings(limits=Limits(**{"exempt": (), **limits}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


async def _last_reply(client: SmtpClient) -> str:
    """The last reply before the server closes."""
    last = ""
    try:
        while True:
            last = (await client.reply()).text
    except ConnectionEnded:
        return last


@pytest.mark.setting("limits.message_size")
async def test_message_above_the_size_limit_is_refused(root: Path) -> None:
    async with serving(root, limited(message_size=Size(10_000))) as running:
        client = await running.hello()
        assert (await client.ask("MAIL FROM:<x@y.test> SIZE=10001")).enhanced == "5.3.4"
        reply = await client.mail(message(body="x" * 70 + "\r\n" * 20_000))
        assert (reply.code, reply.enhanced) == (552, "5.3.4")
        assert (await client.mail(message())).code == 250


@pytest.mark.setting("limits.header_size")
async def test_header_above_the_size_limit_is_refused(root: Path) -> None:
    async with serving(root, limited(header_size=Size(2000))) as running:
        client = await running.hello()
        reply = await client.mail(b"X-Long: " + b"x" * 3000 + b"\r\n\r\nbody\r\n")
        assert (reply.code, reply.enhanced) == (552, "5.3.4")
        assert (await client.mail(message(body="x" * 5000 + "\r\n"))).code == 250


@pytest.mark.setting("limits.hops")
async def test_message_with_too_many_hops_is_refused(root: Path) -> None:
    async with serving(root, limited(hops=3)) as running:
        client = await running.hello()
        reply = await client.mail(b"Received: from a\r\n" * 4 + b"\r\nloop\r\n")
        assert (reply.code, reply.enhanced) == (554, "5.4.6")
        assert (await client.mail(b"Received: from a\r\n" * 3 + b"\r\nno loop\r\n")).code == 250


@pytest.mark.setting("limits.recipients")
async def test_recipients_above_the_limit_are_deferred(root: Path) -> None:
    async with serving(root, limited(recipients=3)) as running:
        client = await running.hello()
        assert await client.codes("MAIL FROM:<x@y.test>", *[f"RCPT TO:<{ADA}>"] * 5, "DATA") == [
            250, 250, 250, 250, 452, 452, 354,
        ]  # fmt: skip
        client.send(message() + b".\r\n")
        assert (await client.reply()).code == 250


@pytest.mark.setting("limits.errors")
async def test_client_with_too_many_errors_is_disconnected(root: Path) -> None:
    async with serving(root, limited(errors=5)) as running:
        client = await running.hello()
        client.send(b"BOGUS\r\n" * 20)
        assert "Too many errors" in await _last_reply(client)


async def test_unknown_recipients_do_not_count_as_errors_in_lmtp(root: Path) -> None:
    async with serving(root, limited(errors=5)) as running:
        client = await running.hello("lmtp")
        assert (await client.ask("MAIL FROM:<x@y.test>")).code == 250
        assert await client.codes(*["RCPT TO:<nobody@example.test>"] * 20) == [550] * 20
        assert (await client.ask(f"RCPT TO:<{ADA}>")).code == 250


@pytest.mark.parametrize("commands", [[], ["DATA"], ["BDAT 1000"]])
@pytest.mark.parametrize("kind", ["smtp", "lmtp"])
async def test_client_within_a_transaction_gets_a_reply_at_shutdown(root: Path, kind: str, commands: list[str]) -> None:
    async with serving(root) as running:
        client = await running.hello(kind)
        for command in ("MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>"):
            assert (await client.ask(command)).code == 250
        for command in commands:
            client.send(f"{command}\r\nSubject: half")
            if command == "DATA":
                assert (await client.reply()).code == 354
        closing = asyncio.create_task(running.keeper.close())
        last = await client.reply()
        assert (last.code, last.enhanced) == (421, "4.3.2")
        with pytest.raises(ConnectionEnded):
            await client.reply()
        await closing


@pytest.mark.setting("limits.commands_without_mail")
async def test_client_with_too_many_commands_without_mail_is_disconnected(root: Path) -> None:
    async with serving(root, limited(commands_without_mail=10)) as running:
        client = await running.hello()
        for _ in range(3):  # an accepted message resets the count
            assert await client.codes(*["NOOP"] * 6) == [250] * 6
            assert (await client.mail(message())).code == 250
        client.send(b"NOOP\r\n" * 20)
        assert "Too many commands" in await _last_reply(client)


@pytest.mark.setting("limits.connections_per_ip")
async def test_connections_from_one_address_are_limited(root: Path) -> None:
    async with serving(root, limited(connections_per_ip=2)) as running:
        first, _second = await running.hello(), await running.hello()
        third = await running.connect()
        reply = await third.reply()
        assert (reply.code, reply.enhanced) == (421, "4.7.0")
        await first.ask("QUIT")
        assert await first.ended()
        first.close()
        await until(lambda: running.services.admission.total < 2)
        assert (await (await running.connect()).reply()).code == 220


async def test_surplus_connection_gets_no_tls_handshake(root: Path, tmp_path: Path) -> None:
    settings = dataclasses.replace(limited(connections_per_ip=1), tls=make_certificate(tmp_path))
    async with serving(root, settings, ["submissions"]) as running:
        first = await running.connect("submissions", context=trusting())
        assert (await first.reply()).code == 220
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await running.connect("submissions", context=trusting())


@pytest.mark.setting("limits.connections", "limits.exempt")
async def test_total_connections_are_limited_except_for_exempt_peers(root: Path) -> None:
    async with serving(root, limited(connections=1)) as running:
        first = await running.hello()
        second = await running.hello()
        reply = await first.reply()  # the oldest gives way
        assert (reply.code, reply.enhanced) == (421, "4.7.0")
        assert await first.ended()
        assert (await second.mail(message())).code == 250
        handing_over = await running.hello("lmtp")  # LMTP connections never give way
        assert (await (await running.connect("lmtp")).reply()).code == 421
        assert (await handing_over.mail(message())).code == 250
    async with serving(root, limited(connections=1, exempt=("127.0.0.0/8",), errors=1)) as running:
        clients = [await running.hello() for _ in range(4)]
        assert await clients[0].codes(*["BOGUS"] * 5) == [500] * 5


@pytest.mark.setting("limits.connections_per_user")
async def test_connections_of_one_user_are_limited(root: Path) -> None:
    async with serving(root, limited(connections_per_user=1)) as running:
        first, second = await running.hello("submission"), await running.hello("submission")
        assert (await first.login()).code == 235
        assert (await second.login()).code == 421
        assert await second.ended()


@pytest.mark.setting("limits.first_command", "limits.idle")
async def test_client_without_a_command_times_out(root: Path) -> None:
    async with serving(root, limited(first_command=Seconds(0.2))) as running:
        silent = await running.connect()
        assert "Idle for too long" in await _last_reply(silent)
    async with serving(root, limited(idle=Seconds(1.5))) as running:
        slow = await running.hello()

        async def drip() -> None:
            for octet in b"NOOP" * 1000:
                slow.send(bytes((octet,)))
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        # Octets without a complete command do not extend the time.
        assert "Idle for too long" in await _last_reply(slow)
        assert dripping.cancel()  # still sending


@pytest.mark.setting("limits.data_rate", "limits.data_grace")
async def test_client_below_the_minimum_data_rate_is_disconnected(root: Path) -> None:
    limits = {"data_rate": Size(1000), "data_grace": Seconds(1.0), "data_idle": Seconds(PATIENCE)}
    async with serving(root, limited(**limits)) as running:
        client = await running.hello()
        assert await client.codes("MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", "DATA") == [250, 250, 354]

        async def drip() -> None:
            for _ in range(200):
                client.send(b"x")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert "rate below limit" in await _last_reply(client)
        dripping.cancel()
        assert running.inbox() == []
        steady = await running.hello()
        assert await steady.codes("MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", "DATA") == [250, 250, 354]
        steady.send(b"Subject: steady\r\n\r\n")
        for _ in range(24):
            steady.send((b"x" * 500 + b"\r\n") * 40)  # enough for twenty seconds
            await asyncio.sleep(0.05)
        steady.send(b".\r\n")
        assert (await steady.reply()).code == 250


@pytest.mark.setting("limits.data_idle")
async def test_silent_client_within_data_is_disconnected(root: Path) -> None:
    async with serving(root, limited(data_idle=Seconds(0.2))) as running:
        client = await running.hello()
        assert await client.codes("MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", "DATA") == [250, 250, 354]
        assert "rate below limit" in await _last_reply(client)


@pytest.mark.parametrize(
    ("commands", "last_reply"),
    [
        (["MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", "DATA"], ["5.3.4", "4.4.2"]),
        (["MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", "BDAT 99999999999"], ["5.3.4", "4.4.2"]),
        (["BDAT 99999999999"], ["4.4.2"]),
    ],
)
@pytest.mark.parametrize("pause", [0.0, 0.02])
async def test_refused_message_without_end_is_cut_off(
    root: Path, commands: list[str], last_reply: list[str], pause: float
) -> None:
    """At any data rate."""
    limits = {"message_size": Size(1000), "data_rate": Size(1), "data_idle": Seconds(0.3)}
    async with serving(root, limited(**limits)) as running:
        client = await running.hello()
        client.send("".join(f"{command}\r\n" for command in commands))

        async def go_on() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    client.send(b"No end of it.\r\n" * 100)
                    await client.writer.drain()
                    await asyncio.sleep(pause)

        going_on = asyncio.create_task(go_on())
        given = []
        with contextlib.suppress(ConnectionEnded):
            while True:
                given.append(await client.reply())
        going_on.cancel()
        assert [reply.enhanced for reply in given[len(commands) - 1 + ("DATA" in commands) :]] == last_reply
        assert given[-1].code == 421
        assert running.inbox() == []


async def test_refused_lmtp_message_without_end_gets_a_reply_for_each_recipient(root: Path) -> None:
    async with serving(root, limited(message_size=Size(1000), data_idle=Seconds(0.3))) as running:
        client = await running.hello("lmtp")
        client.send(f"MAIL FROM:<x@y.test>\r\nRCPT TO:<{ADA}>\r\nRCPT TO:<{BOB}>\r\nDATA\r\n")
        client.send("No end of it.\r\n" * 100)
        given = [await client.reply() for _ in range(7)]
        assert [(reply.code, reply.enhanced) for reply in given[4:]] == [(552, "5.3.4"), (552, "5.3.4"), (421, "4.4.2")]
        assert ADA in given[4].text
        assert BOB in given[5].text


def test_receive_timer_counts_only_the_clients_time() -> None:
    timer = ReceiveTimer(Limits(data_grace=Seconds(10.0), data_rate=Size(100), data_idle=Seconds(8.0)))
    assert timer.timeout == 8.0
    timer.record(5.0, 0)
    assert timer.timeout == 5.0
    timer.record(1.0, 1000)
    assert timer.timeout == 8.0
    timer.record(20.0, 100)
    assert timer.timeout == 0.0


async def test_client_that_does_not_read_is_disconnected(root: Path) -> None:
    async with serving(root, limited(exempt=("127.0.0.0/8",), idle=Seconds(0.3))) as running:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", running.ports["smtp"]))
            sending = asyncio.create_task(loop.sock_sendall(client, b"EHLO a\r\n" * 500_000))
            for count in (1, 0):
                await until(lambda count=count: len(running.services.connections) == count)  # type: ignore[misc]
            sending.cancel()
            await asyncio.wait([sending])


# --- internal errors are temporary and reveal nothing -----------------------------------------------------------------


def _fail(error: Exception) -> Callable[..., Any]:
    def raising(*arguments: object, **named: object) -> Any:
        raise error

    return raising


@pytest.mark.parametrize(
    ("where", "error", "code", "enhanced"),
    [
        ("stage", RuntimeError("secret /srv/mail/path"), 451, "4.3.0"),
        ("stage", OSError(28, "No space left on device", "/srv/mail"), 452, "4.3.1"),
        ("stage", MailError(Reason.LOCK_TIMEOUT, "locks/index.lock"), 451, "4.3.2"),
        ("commit_all", MailError(Reason.LOCK_TIMEOUT, "locks/index.lock"), 451, "4.3.2"),
        ("commit_all", MailError(Reason.MAINTENANCE, "repair"), 421, "4.3.2"),
    ],
)
async def test_internal_errors_are_temporary_and_generic(
    root: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, code: int, enhanced: str
) -> None:
    async with serving(root) as running:
        client = await running.hello()
        with monkeypatch.context() as patched:
            if where == "stage":
                patched.setattr("adapter.transport.staging.StagingArea.stage", _fail(error))
            else:
                patched.setattr(Transport, where, _fail(error))
            reply = await client.mail(message())
        assert (reply.code, reply.enhanced) == (code, enhanced)
        assert "srv" not in reply.text
        if code == 421:
            assert await client.ended()
        else:
            assert (await client.mail(message())).code == 250
        assert not [path for path in (root / "staging").rglob("*") if path.is_file()]


async def test_full_disk_during_data_is_temporary(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(root) as running:
        client = await running.hello()
        with monkeypatch.context() as patched:
            patched.setattr(disk, "write_all", _fail(OSError(28, "No space left on device")))
            reply = await client.mail(message(body="0123456789" * 7 + "\r\n" * 400_000))
            assert (reply.code, reply.enhanced) == (452, "4.3.1")
        assert (await client.mail(message())).code == 250


async def test_unexpected_error_in_a_command_is_temporary(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(root) as running:
        client = await running.hello()
        assert (await client.ask("MAIL FROM:<x@y.test>")).code == 250
        with monkeypatch.context() as patched:
            patched.setattr("adapter.accounts.recipients.Recipients.resolve", _fail(RuntimeError("secret")))
            reply = await client.ask(f"RCPT TO:<{ADA}>")
        assert (reply.code, reply.enhanced) == (451, "4.3.0")
        assert "secret" not in reply.text
        assert (await client.ask(f"RCPT TO:<{ADA}>")).code == 250


@pytest.mark.parametrize("kind", ["smtp", "lmtp"])
async def test_unexpected_error_in_delivery_ends_the_transaction(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    recipients = [f"RCPT TO:<{ADA}>", f"RCPT TO:<{BOB}>"]
    async with serving(root) as running:
        client = await running.hello(kind)
        with monkeypatch.context() as patched:
            patched.setattr("adapter.transport.commit_queue.CommitQueue.run", _fail(RuntimeError("secret")))
            assert await client.codes("MAIL FROM:<x@y.test>", *recipients, "DATA") == [250, 250, 250, 354]
            client.send(message() + b".\r\n")
            replies = [await client.reply() for _ in recipients[kind != "lmtp" :]]
        assert {(reply.code, reply.enhanced) for reply in replies} == {(451, "4.3.0")}
        assert "secret" not in replies[0].text
        assert (await client.mail(message())).code == 250
        assert len(running.inbox()) == 1
        assert running.inbox(BOB) == []


async def test_octets_of_a_message_that_cannot_be_spooled_are_not_read_as_commands(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(root) as running:
        client = await running.hello()
        monkeypatch.setattr("adapter.transport.transport.Transport.spool", _fail(MailError(Reason.UNKNOWN)))
        # 451 instead of 354: the client does not send the message.
        assert await client.codes("MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", "DATA", "NOOP") == [250, 250, 451, 250]
        # A chunk follows without a reply.
        client.send(b"BDAT 6 LAST\r\nNOOP\r\n")
        assert (await client.reply()).code == 421
        assert await client.ended()


async def test_idle_timer_does_not_run_while_a_message_is_stored(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Transport.commit_all
    reached, released = threading.Event(), threading.Event()

    def slow(
        self: Transport, operations: Sequence[Operation[Any]], actors: Sequence[Actor | None] | None = None
    ) -> list[Future[Any]]:
        reached.set()
        assert released.wait(PATIENCE)
        return original(self, operations, actors)

    monkeypatch.setattr(Transport, "commit_all", slow)
    idle = 0.2
    async with serving(root, limited(idle=Seconds(idle), data_idle=Seconds(idle))) as running:
        client = await running.connect()
        octets = message()
        # In one packet: the server does not wait between these commands.
        envelope = b"EHLO c\r\nMAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\n"
        client.send(envelope + b"BDAT %d LAST\r\n" % len(octets) + octets)
        await until(reached.is_set)
        await asyncio.sleep(3 * idle)
        released.set()
        assert [(await client.reply()).code for _ in range(5)] == [220, 250, 250, 250, 250]
        assert len(running.inbox()) == 1


async def test_servers_in_one_process_have_separate_size_limits(root: Path, tmp_path: Path) -> None:
    """aiosmtpd keeps its size limits on the class."""
    make_store(tmp_path / "other")
    small = dataclasses.replace(Settings(), limits=Limits(message_size=Size(1000)))
    async with serving(root) as large, serving(tmp_path / "other", small) as limited_one:
        await (await limited_one.hello()).ask("NOOP")
        client = await large.hello()
        assert (await client.ask("MAIL FROM:<x@y.test> SIZE=5000000 BODY=8BITMIME SMTPUTF8")).code == 250
        other = await limited_one.hello()
        assert (await other.ask("MAIL FROM:<x@y.test> SIZE=5000000")).code == 552
