"""The same random commands over the memory store and over a real one get the same responses."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.imap.server import StoreBackend
from adapter.sessions.context import OpenStore
from adapter.transport.commit_queue import CommitQueue
from adapter.transport.transport import Transport
from tests.support.memory.server import AnyPassword, Client, SocketlessServer, memory_server
from tests.support.memory.store import MemoryStore
from tests.support.messages import message
from tests.support.stores import ADA, new_store

FOLDERS = ("INBOX", "Archive", "Work", "Work/Plans")
MESSAGES = (
    message("One", "The first.\r\n", message_id="<1@x.test>"),
    message("Re: One", "A reply.\r\n", message_id="<2@x.test>", references=["<1@x.test>"]),
    message("Zwei", "With files.\r\n", message_id="<3@x.test>", attachments=[b"\0\1\2" * 20, b"text"]),
    b"no header at all\r\n",
)
ITEMS = (
    "FLAGS",
    "(UID FLAGS MODSEQ RFC822.SIZE)",
    "(ENVELOPE BODYSTRUCTURE)",
    "BODY",
    "BODY[]",
    "(UID BODY.PEEK[HEADER])",
    "BODY.PEEK[HEADER.FIELDS (Subject From)]",
    "BODY.PEEK[TEXT]<2.5>",
    "(BODY.PEEK[1] BODY.PEEK[2.MIME] BODY.PEEK[3])",
    "(BINARY.PEEK[2] BINARY.SIZE[1])",
    "UID",
)
CRITERIA = (
    "ALL",
    "UNSEEN FLAGGED",
    "DELETED",
    "KEYWORD custom",
    "SUBJECT one",
    'BODY "reply"',
    "TEXT files",
    "NOT FROM bob",
    "LARGER 300",
    "OR 1:2 UID 3:*",
    "MODSEQ 3",
    "HEADER References 1@x",
    "SENTON 16-Nov-2026",
)
FLAGS = ("\\Seen", "\\Deleted", "\\Flagged", "custom", "Other", "\\Deleted custom", "")

_folder = st.sampled_from(FOLDERS)
_set = st.sampled_from(("1", "2", "1:2", "1:*", "*", "2:4", "1,3"))
_uid = st.sampled_from(("", "UID "))
_flags = st.sampled_from(FLAGS)


def _append(folder: str, octets: bytes, flags: str) -> bytes:
    return b"APPEND %b (%b) {%d+}\r\n%b" % (folder.encode(), flags.encode(), len(octets), octets)


COMMANDS = st.one_of(
    st.builds(_append, _folder, st.sampled_from(MESSAGES), _flags),
    st.builds(_append, st.just("INBOX"), st.sampled_from(MESSAGES), _flags),
    st.builds("SELECT {}".format, _folder),
    st.builds("EXAMINE {}".format, _folder),
    st.builds("{}FETCH {} {}".format, _uid, _set, st.sampled_from(ITEMS)),
    st.builds("FETCH 1:* (FLAGS) (CHANGEDSINCE {})".format, st.integers(1, 6)),
    st.builds(
        "{}STORE {} {}FLAGS{} ({})".format, _uid, _set, st.sampled_from("+- "), st.sampled_from(("", ".SILENT")), _flags
    ).map(lambda command: command.replace("  FLAGS", " FLAGS")),
    st.builds("STORE {} (UNCHANGEDSINCE {}) +FLAGS ({})".format, _set, st.integers(1, 6), _flags),
    st.builds("{}COPY {} {}".format, _uid, _set, _folder),
    st.builds("{}MOVE {} {}".format, _uid, _set, _folder),
    st.builds("UID EXPUNGE {}".format, _set),
    st.builds("{}SEARCH {}".format, _uid, st.sampled_from(CRITERIA)),
    st.builds("SEARCH RETURN (MIN MAX COUNT ALL) {}".format, st.sampled_from(CRITERIA)),
    st.builds("SORT ({}) UTF-8 ALL".format, st.sampled_from(("SUBJECT", "REVERSE SIZE", "DATE FROM", "TO"))),
    st.builds("THREAD {} UTF-8 ALL".format, st.sampled_from(("REFERENCES", "ORDEREDSUBJECT"))),
    st.builds("CREATE {}".format, _folder),
    st.builds("DELETE {}".format, _folder),
    st.builds("RENAME {} {}".format, _folder, st.sampled_from((*FOLDERS, "New/Place"))),
    st.builds("{} {}".format, st.sampled_from(("SUBSCRIBE", "UNSUBSCRIBE")), _folder),
    st.builds("STATUS {} (MESSAGES UNSEEN DELETED SIZE RECENT UIDNEXT HIGHESTMODSEQ)".format, _folder),
    st.sampled_from(("EXPUNGE", "NOOP", "CHECK", "CLOSE", 'LIST "" *', 'LIST "" %', 'LSUB "" *', "ENABLE CONDSTORE")),
)
#: A session, and its next command.
STEPS = st.lists(st.tuples(st.integers(0, 1), COMMANDS), min_size=8, max_size=25)

_TIMES = re.compile(rb'"[ \d]\d-\w{3}-\d{4} [\d:]{8} \+0000"')
_VALIDITY = re.compile(rb"(?<=UIDVALIDITY )\d+|(?<=APPENDUID )\d+|(?<=COPYUID )\d+")
_MAILBOX_ID = re.compile(rb"(?<=MAILBOXID \()[^)]+")
_FLAG_LIST = re.compile(rb"FLAGS \(([^()]*)\)")


def comparable(response: bytes) -> bytes:
    """The response without what two stores never have in common, and with flags in alphabetical order."""
    for pattern in (_TIMES, _VALIDITY, _MAILBOX_ID):
        response = pattern.sub(b"?", response)
    return _FLAG_LIST.sub(lambda match: b"FLAGS (%b)" % b" ".join(sorted(match[1].split())), response)


@contextlib.asynccontextmanager
async def real_server(transport: Transport) -> AsyncIterator[SocketlessServer]:
    commits = CommitQueue(transport, 1)
    opened = SimpleNamespace(transport=transport, commits=commits, authenticator=AnyPassword(), sent_copies=None)
    server = SocketlessServer(lambda _, *limits: StoreBackend(cast("OpenStore", opened), *limits))
    try:
        yield server
    finally:
        await server.close()
        commits.close()


async def _compare(transport: Transport, steps: Sequence[tuple[int, str | bytes]]) -> None:
    async with real_server(transport) as real:
        memory = memory_server(MemoryStore(ADA))
        pairs: list[tuple[Client, Client]] = [(await real.login(ADA), await memory.login(ADA)) for _ in range(2)]
        for client in pairs[0]:
            for octets, flags in zip(MESSAGES, FLAGS, strict=False):
                await client.ok(_append("INBOX", octets, flags))
            await client.ok("CREATE Work")
        for real_client, memory_client in pairs:
            assert list(map(comparable, await real_client.run("SELECT INBOX"))) == list(
                map(comparable, await memory_client.run("SELECT INBOX"))
            )
        for number, (session, command) in enumerate(steps):
            expected = await pairs[session][0].run(command)
            responses = await pairs[session][1].run(command)
            assert list(map(comparable, responses)) == list(map(comparable, expected)), (number, session, command)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_memory_and_store_give_the_same_responses(steps: list[tuple[int, str | bytes]]) -> None:
    with tempfile.TemporaryDirectory() as place, new_store(f"{place}/store", ADA) as transport:
        asyncio.run(_compare(transport, steps))
