"""The hardened IMAP client: servers that lie, flood, fall silent or disconnect; parsing of responses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import UpstreamSettings
from adapter.config.validate import upstream_problems
from adapter.mirror import client as client_module
from adapter.mirror import naming, replies
from adapter.mirror.client import Client, Refused, UpstreamError
from adapter.mirror.replies import FetchedMessage, MailboxState, RemoteMailbox
from adapter.mirror.session import UpstreamSession
from adapter.server.settings import VALUE_RULES
from adapter.store.flags import Flag
from tests.support.waiting import PATIENCE

SECRET = "the secret"
Script = Callable[[bytes, str], Awaitable[bytes | None]]

# --- servers ---------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving(answers: dict[str, bytes], *, patience: float = 1.0) -> AsyncIterator[Client]:
    """A client of a scripted server: ``{tag}`` is replaced by the tag; a command without response gets none."""
    connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        writer.write(answers.get("greeting", b"* OK hello\r\n"))
        while line := await reader.readline():
            tag, _, rest = line.strip().partition(b" ")
            verb = rest.split(b" ")[0].decode() or tag.decode()
            if verb == "UID":
                verb = rest.split(b" ")[1].decode()
            response = answers.get(verb)
            if response is None and verb == "CAPABILITY":
                response = b"* CAPABILITY IMAP4rev1 IDLE\r\n{tag} OK done\r\n"
            if response is not None:
                writer.write(response.replace(b"{tag}", tag))
                if response.endswith(b"BYE"):
                    writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = Client("127.0.0.1", server.sockets[0].getsockname()[1], patience, None)
    try:
        yield client
    finally:
        client.close()
        server.close()
        for each in connections:
            each.transport.abort()


async def opened(client: Client) -> UpstreamSession:
    await client.greeting()
    await client.login("ada", SECRET)
    session = UpstreamSession(client)
    await session.examine("INBOX")
    return session


OPEN = {
    "LOGIN": b"{tag} OK in\r\n",
    "EXAMINE": b"* 3 EXISTS\r\n* OK [UIDVALIDITY 7] x\r\n* OK [UIDNEXT 9] x\r\n{tag} OK [READ-ONLY] open\r\n",
}


async def test_ordinary_server() -> None:
    async with serving(
        {
            **OPEN,
            "LIST": b'* LIST (\\Noselect) "/" top\r\n* LIST () "/" {9}\r\ntop/{3} x\r\n'
            b"* LIST () NIL INBOX\r\n{tag} OK done\r\n",
            "STATUS": b'* STATUS "INBOX" (MESSAGES 3 UIDNEXT 9 UIDVALIDITY 7)\r\n{tag} OK done\r\n',
        }
    ) as client:
        session = await opened(client)
        assert await session.examine("INBOX") == MailboxState(7, 9, 3, 0)
        assert await session.status("INBOX") == MailboxState(7, 9, 3, 0)
        assert await session.mailboxes() == [
            RemoteMailbox("top/{3} x", ("top", "{3} x")),
            RemoteMailbox("INBOX", ("INBOX",)),
        ]
        assert (session.has_condstore, session.has_idle) == (False, True)


async def test_thousands_of_lines_in_one_response() -> None:
    """aioimaplib's parser recurses for each line: it gets a limited number of lines at a time."""
    lines = b"".join(b"* %d FETCH (UID %d FLAGS (\\Seen))\r\n" % (number, number) for number in range(1, 2001))
    async with serving({**OPEN, "FETCH": lines + b"{tag} OK done\r\n"}, patience=20) as client:
        session = await opened(client)
        messages = [each async for each in session.messages([1])]
    assert len(messages) == 2000
    assert messages[-1] == FetchedMessage(2000, ("\\Seen",))


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"greeting": b""}, "no response for 1 seconds"),
        ({"greeting": b"* BYE go away\r\n"}, "not an IMAP greeting"),
        ({"greeting": b"220 smtp.example.test\r\n"}, "not an IMAP greeting|no response"),
        ({"greeting": b"* OK hello\r\n", "CAPABILITY": b"BYE"}, "connection lost"),
        ({"LOGIN": b"{tag} NO [AUTHENTICATIONFAILED] no\r\n"}, "login refused"),
        ({"LOGIN": b"OTHER1 OK in\r\n"}, r"malformed response \(Abort\)"),
        ({"LOGIN": b""}, "no response for 1 seconds"),
        ({"CAPABILITY": b"* CAPABILITY IMAP4rev1 LOGINDISABLED\r\n{tag} OK\r\n"}, "logins are disabled"),
        ({**OPEN, "EXAMINE": b"{tag} NO not there\r\n"}, "EXAMINE refused"),
        ({**OPEN, "EXAMINE": b"* 3 EXISTS\r\n{tag} OK\r\n"}, "UIDVALIDITY"),
        ({**OPEN, "EXAMINE": b"* 3 EXISTS\r\nBYE"}, "connection lost"),
        ({**OPEN, "EXAMINE": b"x" * 6_000_000}, "response too large"),
        ({**OPEN, "EXAMINE": b"* OK x {99999999}\r\n" + b"y" * 6_000_000}, "response too large"),
    ],
)
async def test_misbehaving_server_is_an_error_without_the_password(
    answers: dict[str, bytes], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(answers) as client:
        with pytest.raises(UpstreamError, match=why) as failure:
            await opened(client)
    assert SECRET not in str(failure.value) + caplog.text


async def test_unreachable_server_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = Client("127.0.0.1", port, 10, None)
    with pytest.raises(UpstreamError, match=f"^127.0.0.1:{port}: Connection refused$"):
        await client.greeting()
    client.close()


@pytest.mark.parametrize(
    ("answer", "is_permanent"),
    [
        (b"NO [NONEXISTENT] no such mailbox", True),
        (b"NO no such mailbox", True),
        (b"NO [UNAVAILABLE] come again", False),
        (b"NO [SERVERBUG] Internal error occurred. Refer to server log for more information.", False),
        (b"NO [NOPERM] not for you", False),
        (b"BAD what", False),
    ],
)
async def test_temporary_failure_is_not_taken_for_a_deleted_mailbox(answer: bytes, is_permanent: bool) -> None:
    async with serving({**OPEN, "STATUS": b"{tag} " + answer + b"\r\n"}) as client:
        session = await opened(client)
        with pytest.raises(Refused, match="STATUS refused") as refused:
            await session.status("Gone")
    assert refused.value.is_permanent is is_permanent


async def test_unfinished_body_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving({**OPEN, "FETCH": b"* 1 FETCH (UID 1 BODY[] {1000}\r\n" + b"x" * 500}) as client:
        session = await opened(client)
        with pytest.raises(UpstreamError, match="no response"):
            await session.small_bodies({1: 1000})
        with pytest.raises(UpstreamError):  # the connection is closed
            await session.examine("INBOX")


@pytest.mark.parametrize(
    "answer",
    [
        b'* 1 FETCH (UID 1 BODY[] "quoted")\r\n',  # contents must be literals
        b"* 1 FETCH (UID 1 BODY[] NIL)\r\n",
        b"* 1 FETCH (UID 2 BODY[] {6}\r\nquoted)\r\n",
        b"* 1 FETCH (UID 1 BODY[] {5}\r\nshort)\r\n",
        b"* 1 FETCH (BODY[] {6}\r\nquoted)\r\n",
        b"",
    ],
)
async def test_unrequested_contents_are_ignored(answer: bytes) -> None:
    async with serving({**OPEN, "FETCH": answer + b"{tag} OK done\r\n"}) as client:
        session = await opened(client)
        assert await session.small_bodies({1: 6}) == {}


async def test_idle_that_does_not_end_is_a_timeout() -> None:
    answers = {**OPEN, "IDLE": b"+ idling\r\n* OK Still here\r\n", "DONE": b""}
    async with serving(answers) as client:
        session = await opened(client)
        with pytest.raises(UpstreamError, match="no response"):  # to DONE
            await session.idle(0.2, {})
    async with serving({**OPEN, "IDLE": b"+ idling\r\n* OK Still here\r\n* 4 EXISTS\r\n"}) as client:
        session = await opened(client)
        with pytest.raises(UpstreamError):
            async with asyncio.timeout(PATIENCE):
                await session.idle(60, {})
    async with serving({**OPEN, "IDLE": b"{tag} NO not now\r\n"}) as client:
        session = await opened(client)
        with pytest.raises(UpstreamError):
            await session.idle(60, {})


async def test_cancelled_call_closes_the_connection() -> None:
    async with serving({**OPEN, "FETCH": b""}, patience=30) as client:
        session = await opened(client)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await session.small_bodies({1: 6})
        with pytest.raises(UpstreamError):
            await session.examine("INBOX")


async def test_name_that_imap_cannot_express_is_refused() -> None:
    async with serving(OPEN) as client:
        session = await opened(client)
        with pytest.raises(Refused):
            await session.examine("INBOX\r\nA1 DELETE INBOX")
        assert (await session.examine("INBOX")).uidvalidity == 7


def test_log_of_the_library_is_silenced() -> None:
    assert not logging.getLogger("aioimaplib.aioimaplib").isEnabledFor(logging.CRITICAL)
    assert list(client_module._blocks(b"a\n" * 250)) == [b"a\n" * 100, b"a\n" * 100, b"a\n" * 50]


# --- answers ---------------------------------------------------------------------------------------------------------


def test_fetch_responses() -> None:
    lines: list[bytes | bytearray] = [
        b'1 FETCH (FLAGS (\\Seen $Todo) UID 5 INTERNALDATE " 9-Sep-2001 01:46:40 +0000" RFC822.SIZE 12 BODY[]<0> {4}',
        bytearray(b")* {"),
        b" MODSEQ (12))",
        b"2 FETCH (FLAGS ())",
        b'3 FETCH (UID 6 INTERNALDATE "31-Feb-2001 01:46:40 +0000" X (((((((((((((((((((((',
        b'4 fetch (uid 7 internaldate "09-SEP-2001 03:46:40 +0200" body[] {0}',
        bytearray(b""),
        b")",
        b"EXPUNGE",
        b"Fetch completed (0.001 + 0.000 secs).",
    ]
    assert list(replies.parse_fetch(lines)) == [
        FetchedMessage(5, ("\\Seen", "$Todo"), 1_000_000_000, 12, bytearray(b")* {")),
        FetchedMessage(7, None, 1_000_000_000, None, bytearray(b"")),
    ]


def test_list_responses() -> None:
    lines: list[bytes | bytearray] = [
        b'(\\HasNoChildren) "." INBOX.Gr&APwA3w-e',
        b'() "/" "with \\"quotes\\" and \\\\"',
        b'() "/" {5}',
        bytearray(b"a/b/c"),
        b'(\\NonExistent) "/" gone',
        b'() "/" "raw \xc3\xbc"',
        b'() "/" "bad \xff"',
        b'() "/" ""',
        b"List completed.",
    ]
    assert [each.levels for each in replies.parse_list(lines)] == [
        ("INBOX", "Grüße"),
        ('with "quotes" and \\',),
        ("a", "b", "c"),
        ("raw ü",),
    ]


def test_names_and_flags_are_mapped_to_the_store() -> None:
    plain = UpstreamSettings()
    chosen = UpstreamSettings(prefix="Work", folders={"Sent Items": "Sent"}, skip=("Trash",))
    assert naming.folder_name(("inbox", "a/b")) == "INBOX/a_b"
    assert naming.target_folder("Lists/One", plain) == "Lists/One"
    assert [naming.target_folder(name, chosen) for name in ("INBOX", "Sent Items", "x")] == ["Work", "Sent", "Work/x"]
    assert naming.target_folder("a//b", plain) is None
    assert [naming.is_skipped(name, chosen) for name in ("Trash", "Trash/x", "Trashy")] == [True, True, False]
    flags, words = naming.convert_flags(("\\SEEN", "\\Recent", "\\Deleted", "$Junk", "bad(word", "\\Weird"))
    assert (flags, words) == (Flag.READ | Flag.DELETED, ("$Junk",))


def test_invalid_settings_are_reported() -> None:
    good = UpstreamSettings(host="h", user="u", password="p", account="ada@example.test")
    assert list(upstream_problems("work", good, VALUE_RULES)) == []
    bad = UpstreamSettings(
        port=0, account="nobody", prefix="a//b", ca_file="/none", password="p", password_file="/none"
    )
    assert {key for key, _ in upstream_problems("a/b", bad, VALUE_RULES)} == {
        "", "host", "user", "port", "account", "prefix", "ca_file", "password_file",
    }  # fmt: skip
    never = replace(good, poll=Seconds(0), timeout=Seconds(0), first_retry=Seconds(0), longest_retry=Seconds(0))
    assert {key for key, _ in upstream_problems("work", never, VALUE_RULES)} == {
        "poll",
        "timeout",
        "first_retry",
        "longest_retry",
    }
