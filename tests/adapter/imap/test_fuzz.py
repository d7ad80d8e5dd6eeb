"""Random input in every state: a tagged response, BAD, or a clean end; never a stuck connection, never a traceback."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import Settings
from tests.support.imapd import ImapClient, Running, make_store, serving
from tests.support.mail.corpus import varied_message
from tests.support.stores import ADA, append
from tests.support.waiting import PATIENCE

ROUNDS = 400 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 30

_WORDS = (
    b'FETCH STORE SEARCH COPY MOVE UID LIST LSUB STATUS SELECT EXAMINE CREATE DELETE RENAME APPEND REPLACE '
    b'IDLE DONE LOGIN AUTHENTICATE PLAIN LOGIN SCRAM-SHA-256 STARTTLS COMPRESS DEFLATE ENABLE QRESYNC '
    b'CONDSTORE UIDONLY IMAP4rev2 EXPUNGE CLOSE UNSELECT NOOP CHECK CAPABILITY NAMESPACE ID GETQUOTA '
    b'GETQUOTAROOT SETQUOTA SORT THREAD REFERENCES ALL FLAGS BODY[] BODY.PEEK[1.2.MIME]<0.9> BINARY[1] '
    b'BODYSTRUCTURE ENVELOPE PREVIEW MODSEQ INBOX Trash RETURN SAVE SUBJECT BODY TEXT HEADER NOT OR CHARSET '
    b'UTF-8 SINCE 1-Jan-2026 LARGER 1:* $ * 1 2 4294967295 0 -1 +FLAGS .SILENT (\\Seen) (\\Deleted) '
    b'\\Flagged $x () ( ) "" "a b" "\\"" {3} {3+} ~{2+} {99999999999} {0} % CHANGEDSINCE VANISHED '
    b'(CHANGEDSINCE 1) (UNCHANGEDSINCE 5) PARTIAL -1:-5 = + & &AGE- \xc3\xbc \xff \x00 \r \n \r\n'
).split(b" ")  # fmt: skip


def _noise(dice: random.Random) -> bytes:
    """Random octets, rich in special characters."""
    alphabet = dice.choice([bytes(range(256)), b'A1 {}()"\\%*[]<>\r\n+~$', b"{}0123456789+\r\n"])
    return bytes(dice.choice(alphabet) for _ in range(dice.randint(1, 200)))


def _grammar(dice: random.Random) -> bytes:
    """Keywords of the protocol in random order."""
    lines = []
    for number in range(dice.randint(1, 4)):
        words = [dice.choice(_WORDS) for _ in range(dice.randint(1, 9))]
        lines.append(b"f%d " % number + b" ".join(words) + b"\r\n")
    return b"".join(lines)


_GOOD = (
    b"x FETCH 1:3 (FLAGS UID ENVELOPE BODY.PEEK[HEADER.FIELDS (Subject)])\r\n",
    b"x UID STORE 1:* (UNCHANGEDSINCE 100) +FLAGS.SILENT (\\Seen $k)\r\n",
    b"x SEARCH RETURN (MIN COUNT SAVE) OR (SUBJECT {4+}\r\nloom) NOT (SEEN BODY x) 1:*\r\n",
    b"x APPEND INBOX (\\Seen) \"01-Jan-2026 00:00:00 +0000\" {9+}\r\nA: b\r\n\r\nc\r\n",
    b"x LIST (SUBSCRIBED RECURSIVEMATCH) \"\" (% *) RETURN (STATUS (MESSAGES UIDNEXT) CHILDREN)\r\n",
    b"x SELECT INBOX (QRESYNC (1 2 1:3 (1:2 3:4)))\r\n",
    b"x LOGIN ada@example.test {6+}\r\nsecret\r\n",
    b"x ID (\"name\" \"fuzz\" \"os\" NIL)\r\n",
    b"x RENAME {5+}\r\nDrafts \"Dr afts\"\r\n",
    b"x IDLE\r\nDONE\r\n",
    b"x SORT (REVERSE DATE SUBJECT) UTF-8 ALL\r\nx UID THREAD REFERENCES UTF-8 SINCE 1-Jan-2020\r\n",
)  # fmt: skip


def _mutated(dice: random.Random) -> bytes:
    """Valid commands with a few octets changed, lost, duplicated or truncated."""
    data = bytearray(b"".join(dice.choice(_GOOD) for _ in range(dice.randint(1, 3))))
    for _ in range(dice.randint(1, 6)):
        place = dice.randrange(len(data))
        match dice.randrange(4):
            case 0:
                data[place] = dice.randrange(256)
            case 1:
                del data[place : place + dice.randint(1, 5)]
            case 2:
                data[place:place] = data[place : place + dice.randint(1, 20)]
            case 3:
                data[place:place] = dice.choice(_WORDS)
        if not data:
            break
    return bytes(data)


async def _logged_out(client: ImapClient) -> None:
    pass


async def _logged_in(client: ImapClient) -> None:
    await client.ok(f"LOGIN {ADA} secret")


async def _selected(client: ImapClient) -> None:
    await _logged_in(client)
    await client.ok("SELECT INBOX")


async def _rich(client: ImapClient) -> None:
    await _logged_in(client)
    await client.ok("ENABLE QRESYNC IMAP4rev2")
    await client.ok("EXAMINE INBOX")


async def _by_uid(client: ImapClient) -> None:
    await _logged_in(client)
    await client.ok("ENABLE UIDONLY UTF8=ACCEPT CONDSTORE")
    await client.ok("SELECT INBOX")


async def _idling(client: ImapClient) -> None:
    await _selected(client)
    client.start("IDLE")
    assert (await client.line()).startswith(b"+")


async def _authenticating(client: ImapClient) -> None:
    client.start("AUTHENTICATE PLAIN")
    assert (await client.line()).startswith(b"+")


async def _appending(client: ImapClient) -> None:
    await _logged_in(client)
    client.send(b"a APPEND INBOX {40+}\r\nSubject: x\r\n")


async def _compressed(client: ImapClient) -> None:
    await _logged_in(client)
    await client.ok("COMPRESS DEFLATE")
    client.start_compression()


STATES = [
    _logged_out,
    _logged_in,
    _selected,
    _rich,
    _by_uid,
    _idling,
    _authenticating,
    _appending,
    _compressed,
]
KINDS: list[Callable[[random.Random], bytes]] = [_noise, _grammar, _mutated]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    root = tmp_path / "store"
    await asyncio.to_thread(make_store, root, ADA)
    defaults = Settings()
    settings = replace(
        defaults,
        login=replace(defaults.login, delay=Seconds(0), longest_delay=Seconds(0)),
        limits=replace(defaults.limits, connections_per_user=500),
    )
    async with serving(root, settings) as running:
        await asyncio.to_thread(append, running.transport, "INBOX", *map(varied_message, range(1, 4)))
        yield running


async def _survives(server: Running, state: Callable[[ImapClient], object], data: bytes) -> None:
    """After random input the connection is closed, or in sync, or waits for a literal until the client disconnects."""
    client = await server.connect()
    await client.line()
    await state(client)  # type: ignore[misc]
    client.send(data)
    # End everything that may be open: a literal, IDLE, an authentication exchange.
    client.send(b"x" * 128 + b"\r\nDONE\r\n*\r\nzz1 NOOP\r\nzz2 LOGOUT\r\n")
    hung_up = False
    while True:
        try:
            line = await client.line(patience=PATIENCE if hung_up else 1)
        except TimeoutError:
            assert not hung_up, "the connection is stuck"
            hung_up = True
            client._writer.write_eof()
            continue
        if not line or line.startswith(b"zz2 "):
            break
        assert line.endswith(b"\n"), line
    await client.close()


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__.strip("_"))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
async def test_random_input_never_breaks_a_session(
    server: Running,
    state: Callable[[ImapClient], object],
    kind: Callable[[random.Random], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    dice = random.Random(f"{state.__name__} {kind.__name__}")
    pieces = [kind(dice) for _ in range(ROUNDS)]
    for at in range(0, len(pieces), 10):
        await asyncio.gather(*(_survives(server, state, data) for data in pieces[at : at + 10]))
    assert not caplog.records, caplog.text
    # The server still works.
    client = await server.login(ADA)
    await client.ok("SELECT INBOX")
    await client.close()
