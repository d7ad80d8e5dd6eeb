"""A message of many parts costs one pass: its file is read once, and every octet is rebuilt once, in every command."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from adapter.content import wire
from adapter.search import searchable_text
from adapter.search.indexer import TextIndexer
from adapter.search.text_index import MAX_INDEXED_CHARACTERS, TextIndex
from adapter.search.text_source import TextReader
from adapter.transport.content import ContentReader
from adapter.transport.transport import Transport
from protocol.imap.commands.fetch_items import Attribute, BodyPart
from protocol.imap.wire.lexer import PLAIN
from protocol.mime.sections import parse_section
from tests.support.imapd import Start
from tests.support.mailboxes import all_rows, fetched, open_folder, open_mailboxes
from tests.support.stores import append, folder

PARTS = 900
#: With this many lines in each part a message is too large to be rebuilt as a whole.
LINES = 220
_LINE = b"words and more of them\r\n"


def hostile(kind: bytes) -> bytes:
    """Text parts, each with a number in it. Of ``kind`` long they become blobs, of ``short`` they stay in the file."""
    lines = LINES if kind == b"long" else 30
    filling = b"" if kind == b"long" else b"x" * 70 + b"\r\n"
    parts = [
        b"--=_\r\nContent-Type: text/plain\r\nX-Part: header-%d-\r\n\r\nnumber-%d-\r\n" % (number, number)
        + _LINE * lines
        + filling * 60
        for number in range(PARTS)
    ]
    head = b'Subject: many\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="=_"\r\n\r\n'
    return head + b"\r\n".join(parts) + b"\r\n--=_--\r\n"


@dataclass
class Cost:
    files: int = 0
    built: int = 0  # octets of segments that are not blobs
    blobs: int = 0  # octets of blobs


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Cost:
    """Count the octets that are read and rebuilt."""
    counted = Cost()
    mutex = threading.Lock()
    file, read, build = ContentReader.file, ContentReader.read, wire._build

    def count(**more: int) -> None:
        with mutex:
            for name, value in more.items():
                setattr(counted, name, getattr(counted, name) + value)

    def counted_file(self: ContentReader, message_id: str) -> bytes:
        count(files=1)
        return file(self, message_id)

    def counted_read(self: ContentReader, sha256: str, offset: int, length: int) -> bytes:
        octets = read(self, sha256, offset, length)
        count(blobs=len(octets))
        return octets

    def counted_build(whole: bytes, segment: wire.Segment) -> bytes:
        count(built=segment.size)
        return build(whole, segment)

    monkeypatch.setattr(ContentReader, "file", counted_file)
    monkeypatch.setattr(ContentReader, "read", counted_read)
    monkeypatch.setattr(wire, "_build", counted_build)
    return counted


def assert_one_pass(cost: Cost, size: int, passes: int = 1) -> None:
    assert cost.files <= passes, cost
    assert cost.built + cost.blobs <= (size + (1 << 16)) * passes, (cost, size)


@pytest.fixture(params=[b"long", b"short"])
def octets(request: pytest.FixtureRequest) -> bytes:
    made = hostile(request.param)
    assert len(made) > 4 << 20
    return made


def test_text_for_a_search_is_read_in_one_pass(store: Transport, octets: bytes, cost: Cost) -> None:
    append(store, "INBOX", octets)
    index = TextIndex(store.root)
    try:
        cost.files = cost.built = cost.blobs = 0
        (text,) = TextReader(store, index, 1 << 25).read(folder(store, "INBOX").id, [1])
        assert_one_pass(cost, len(octets))
    finally:
        index.close()
    assert text.is_whole
    assert re.findall(r"number-(\d+)-", text.body) == [str(number) for number in range(PARTS)]
    assert f"header-{PARTS - 1}-" in text.body


def test_text_index_reads_no_more_than_it_can_keep(store: Transport, octets: bytes, cost: Cost) -> None:
    append(store, "INBOX", octets)
    index = TextIndex(store.root)
    try:
        reader = TextReader(store, index, 1 << 25)
        with store.reading() as connection:
            (message_id,) = connection.execute("SELECT message_id FROM messages").fetchone()
        cost.files = cost.built = cost.blobs = 0
        TextIndexer(store, index, reader)._index_batch([message_id])
        assert_one_pass(cost, MAX_INDEXED_CHARACTERS + len(octets) // PARTS)
        (row,) = index.rows([message_id]).values()
        assert index.too_long([(row, row)]) == {row}  # searches read the message itself
        assert index.texts([message_id]) == {}
    finally:
        index.close()


async def test_search_finds_the_last_part_of_a_message_that_is_not_indexed(start: Start, octets: bytes) -> None:
    async with start() as running:
        append(running.transport, "INBOX", octets)
        client = await running.login()
        await client.ok("SELECT INBOX")
        assert await client.ok(f"SEARCH BODY number-{PARTS - 1}-") == [b"* SEARCH 1"]
        assert await client.ok(f"SEARCH BODY number-{PARTS}-") == [b"* SEARCH"]


async def test_fetch_of_every_part_reads_the_file_once(store: Transport, octets: bytes, cost: Cost) -> None:
    append(store, "INBOX", octets)
    async with open_mailboxes(store) as mailboxes:
        await asyncio.to_thread(mailboxes._indexer.close)  # it reads the message, too, sooner or later
        state = await open_folder(mailboxes)
        await mailboxes.fetch(state, all_rows(state), [Attribute.BODYSTRUCTURE], PLAIN).chunks().__anext__()
        items = [
            BodyPart(b"BODY[%d]" % number, parse_section(b"%d" % number), None, True) for number in range(1, PARTS + 1)
        ]
        cost.files = cost.built = cost.blobs = 0
        answer, _ = await fetched(mailboxes, state, items)
        # One look-up of every blob before the first literal, then the octets.
        assert_one_pass(cost, len(octets))
        assert re.findall(rb"number-(\d+)-", answer) == [b"%d" % number for number in range(PARTS)]
        (message,) = mailboxes._bodies._cached.values()
        assert message.reader is None  # the file is not kept


def test_text_beyond_the_bound_does_not_count(monkeypatch: pytest.MonkeyPatch, store: Transport) -> None:
    """Headers of parts are not limited."""
    monkeypatch.setattr(searchable_text, "MAX_TEXT_CHARACTERS", 1000)
    append(store, "INBOX", hostile(b"long"))
    index = TextIndex(store.root)
    try:
        (text,) = TextReader(store, index, 1 << 25).read(folder(store, "INBOX").id, [1])
    finally:
        index.close()
    assert "number-0-" in text.body
    assert "number-2-" not in text.body
    assert f"header-{PARTS - 1}-" in text.body


def test_ranges_in_any_order_are_those_of_the_octets(store: Transport) -> None:
    octets = hostile(b"short")[: 1 << 20]
    append(store, "INBOX", octets)
    with store.reading() as connection:
        (message_id,) = connection.execute("SELECT message_id FROM messages").fetchone()
    reader: Any = store.content.ranges(message_id)
    whole = store.content.octets(message_id)
    assert whole.endswith(octets[-1000:])
    size = len(whole)
    for start, stop in [
        (0, 10),
        (size - 5, size + 5),
        (500_000, 500_001),
        (7, 700_000),
        (0, size),
        (size, size),
        (3, 3),
    ]:
        assert reader.read(start, stop) == whole[start:stop]
