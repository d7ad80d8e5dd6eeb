"""Sessions: long commands, saved results, many messages, and events between two packets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from adapter.imap import connection
from adapter.imap.connection import Connection
from adapter.imap.handlers import TaggedResponse, failure
from adapter.read_model.fetch.bodies import Bodies, Span
from adapter.read_model.mailboxes import MailboxCache
from protocol.errors import MailError, Reason
from tests.support.imapd import ImapClient, Running, Start
from tests.support.mail.corpus import varied_message
from tests.support.mailboxes import notified
from tests.support.stores import ADA, append
from tests.support.waiting import PATIENCE

AfterIdle = Callable[[Callable[[Running], Awaitable[object]]], AbstractAsyncContextManager[ImapClient]]


@pytest.mark.setting("imap.progress")
async def test_long_command_sends_inprogress(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    enough = asyncio.Event()

    async def slow(
        self: MailboxCache, state: object, program: object, advanced: Callable[[int], None]
    ) -> Sequence[int]:
        advanced(7)
        await enough.wait()
        return []

    monkeypatch.setattr(MailboxCache, "search", slow)
    async with start(imap={"progress": 0.2}) as server:
        client = await server.login(ADA)
        await client.ok("SELECT INBOX")
        tag = client.start("SEARCH ALL")
        for _ in range(3):
            assert (await client.line()).startswith(b'* OK [INPROGRESS ("t3" 7 NIL)] ')
        enough.set()
        untagged, status = await client.finish(tag)
        assert untagged[-1] == b"* SEARCH"
        assert status.startswith(b"OK")
        await client.close()


@pytest.mark.parametrize("error", [MailError(Reason.UNKNOWN), ZeroDivisionError()])
async def test_connection_is_closed_if_a_literal_cannot_be_completed(
    start: Start, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The client would read any other response as content of the literal."""

    def broken(self: Bodies, message_id: str, span: Span) -> Iterator[bytes]:
        yield b"x" * 1000
        raise error

    monkeypatch.setattr(Bodies, "_chunks", broken)
    async with start() as server:
        await asyncio.to_thread(append, server.transport, "INBOX", b"A: b\r\n\r\n" + b"y" * (1 << 20))
        client = await server.login(ADA)
        await client.ok("SELECT INBOX")
        client.start("FETCH 1 (BODY.PEEK[])")
        received = b""
        while line := await client.line():
            received += line
        # A prefix of the response, and nothing else.
        assert (b"* 1 FETCH (BODY[] {%d}\r\n" % ((1 << 20) + 8) + b"x" * 1000).startswith(received)
        await client.close()


async def test_select_that_fails_late_leaves_no_mailbox_selected(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(self: MailboxCache, folder: int, modseq: int) -> list[tuple[int, int]]:
        raise MailError(Reason.UNREADABLE)

    async with start() as server:
        await asyncio.to_thread(append, server.transport, "INBOX", varied_message(1))
        client = await server.login(ADA)
        await client.ok("ENABLE QRESYNC")
        await client.ok("SELECT INBOX")
        uidvalidity = server.session.mailbox.folder.uidvalidity
        monkeypatch.setattr(MailboxCache, "vanished", failing)
        assert (await client.run(f"SELECT INBOX (QRESYNC ({uidvalidity} 1))"))[1].startswith(b"NO [UNAVAILABLE]")
        assert (await client.run("FETCH 1 FLAGS"))[1] == b"BAD Select a mailbox first"
        monkeypatch.undo()
        await client.ok("SELECT INBOX")
        await client.close()


async def test_failed_search_empties_the_saved_result(start: Start) -> None:
    async with start() as server:
        await asyncio.to_thread(append, server.transport, "INBOX", *map(varied_message, range(3)))
        client = await server.login(ADA)
        await client.ok("SELECT INBOX")
        for search in ("SEARCH RETURN (SAVE)", "SORT RETURN (SAVE) (ARRIVAL) UTF-8"):
            await client.ok(f"{search} ALL")
            assert len(await client.ok("FETCH $ (UID)")) == 3
            assert (await client.run(f"{search} " + "ALL " * 1001))[1].startswith(b"NO [LIMIT]")
            assert await client.ok("FETCH $ (UID)") == []
        await client.close()


async def test_disconnect_during_a_search_logs_no_error(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    searching = asyncio.Event()

    async def endless(self: MailboxCache, *arguments: object) -> Sequence[int]:
        searching.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    monkeypatch.setattr(MailboxCache, "search", endless)
    async with start() as server:
        client = await server.login(ADA)
        await client.ok("SELECT INBOX")
        client.start("SEARCH RETURN (SAVE) ALL")
        await asyncio.wait_for(searching.wait(), PATIENCE)
        await client.close()
        assert await server.services.connections.are_gone_within(PATIENCE)
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text


async def test_command_on_many_messages_is_one_commit(start: Start) -> None:
    async with start() as server:
        await asyncio.to_thread(append, server.transport, "INBOX", *map(varied_message, range(80)))
        client = await server.login(ADA)
        await client.ok("SELECT INBOX")
        while len(server.session.mailbox.view) < 10_000:
            await client.ok("COPY 1:* INBOX")
        count = len(server.session.mailbox.view)
        commands = (
            "UID FETCH 1:* (BODY[HEADER.FIELDS (X-None)])",  # sets \Seen
            "UID STORE 1:* +FLAGS.SILENT (\\Flagged)",
            "UID COPY 1:* Archive",
            "UID MOVE 1:* Trash",
            "SELECT Trash",
            "UID STORE 1:* +FLAGS.SILENT (\\Deleted)",
            "EXPUNGE",
        )
        committed = []
        for command in commands:
            before = await asyncio.to_thread(server.transport.index.applied_seq)
            await client.ok(command)
            committed.append(await asyncio.to_thread(server.transport.index.applied_seq) - before)
        assert committed == [1, 1, 1, 1, 0, 1, 1]
        assert (await client.ok("STATUS Archive (MESSAGES)")) == [b"* STATUS Archive (MESSAGES %d)" % count]
        assert (await client.ok("STATUS Trash (MESSAGES)")) == [b"* STATUS Trash (MESSAGES 0)"]
        await client.close()


@pytest.fixture
def after_idle(start: Start, monkeypatch: pytest.MonkeyPatch) -> AfterIdle:
    """Run something after IDLE has begun, while the connection is still busy and yields to others."""

    @asynccontextmanager
    async def run(happens: Callable[[Running], Awaitable[object]]) -> AsyncIterator[ImapClient]:
        drain = Connection.drain
        async with start() as server:
            client = await server.login(ADA)
            await client.ok("COMPRESS DEFLATE")
            client.start_compression()
            await client.ok("SELECT INBOX")

            async def slow_drain(self: Connection) -> None:
                if server.session.state.is_idle:
                    monkeypatch.undo()
                    await happens(server)
                await drain(self)

            monkeypatch.setattr(connection, "_TIME_SLICE_SECONDS", -1.0)
            monkeypatch.setattr(Connection, "drain", slow_drain)
            client.start("IDLE")
            assert (await client.line()).startswith(b"+ ")
            yield client
            await client.close()

    return run


async def test_change_just_after_idle_begins_is_announced(after_idle: AfterIdle) -> None:
    async def deliver(server: Running) -> None:
        await notified(server.transport, lambda: append(server.transport, "INBOX", varied_message(1)))

    async with after_idle(deliver) as client:
        assert await client.line() == b"* 1 EXISTS\r\n"


async def test_shutdown_just_after_idle_begins_sends_bye(after_idle: AfterIdle) -> None:
    async def end(server: Running) -> None:
        server.session.finish()

    async with after_idle(end) as client:
        assert (await client.line()).startswith(b"* BYE [UNAVAILABLE]")


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_response_code(reason: Reason) -> None:
    answer = failure(MailError(reason, "/secret/path"))
    assert answer == TaggedResponse(reason.public, reason.imap.encode(), b"NO")


def test_missing_destination() -> None:
    assert failure(MailError(Reason.NO_SUCH_FOLDER), into=True).code == b"TRYCREATE"
    assert failure(MailError(Reason.OVER_QUOTA), into=True).code == b"OVERQUOTA"
