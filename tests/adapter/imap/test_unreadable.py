"""Unreadable content: commands that need it respond NO [UNAVAILABLE], all others work."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from adapter.store.effects import MarkDamaged
from tests.support.imapd import ImapClient, Running, Start
from tests.support.messages import message
from tests.support.store.failing_reads import FailingReads
from tests.support.store.loss_records import Emit
from tests.support.stores import ADA, append

_LARGE = b"large " * 80_000
_NEEDING = ("FETCH 1 (BODY.PEEK[])", "FETCH 1 (RFC822.SIZE BINARY.PEEK[2])", "FETCH 1 (BODY.PEEK[2])",
            "FETCH 1 (BINARY.SIZE[2])")  # fmt: skip


def _files(server: Running, top: str) -> list[Path]:
    return sorted((path for path in Path(server.transport.root, top).rglob("*") if path.is_file()), key=str)


async def _unavailable(client: ImapClient, command: str) -> None:
    untagged, status = await client.run(command)
    assert status.startswith(b"NO [UNAVAILABLE]"), (command, status)
    assert not [line for line in untagged if b"FETCH" in line], command


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("part", [b"small", _LARGE])
async def test_part_that_cannot_be_read_is_unavailable_and_the_rest_works(
    start: Start, monkeypatch: pytest.MonkeyPatch, part: bytes, error: int
) -> None:
    octets = message("First", attachments=[part])
    reads = FailingReads(monkeypatch)
    async with start() as server:
        await asyncio.to_thread(append, server.transport, "INBOX", octets, message("Second"))
        (blob,) = _files(server, "attachments")
        reads.fail(blob, error)
        client = await server.login(ADA)
        await client.ok("SELECT INBOX")
        for command in _NEEDING:
            await _unavailable(client, command)
        (text,) = await client.ok("FETCH 1 (BODY.PEEK[1])")
        assert b"Hello Ada." in text
        (header,) = await client.ok("FETCH 1 (RFC822.SIZE ENVELOPE BODYSTRUCTURE BODY.PEEK[HEADER.FIELDS (SUBJECT)])")
        assert b"RFC822.SIZE %d " % len(octets) in header
        assert b"Subject: First\r\n" in header
        assert await client.ok("SEARCH BODY Hello") == [b"* SEARCH 1 2"]
        (second,) = await client.ok("FETCH 2 (BODY.PEEK[])")
        assert message("Second") in second
        await client.ok(r"STORE 1 +FLAGS (\Flagged todo)")
        await client.ok("COPY 1 Archive")
        reads.errors.clear()
        (whole,) = await client.ok("FETCH 1 (BODY.PEEK[])")
        assert octets in whole, "it is served as soon as it can be read"
        reads.fail(blob, error)
        await client.ok("MOVE 1 Trash")
        await client.close()


async def test_message_file_that_cannot_be_read_is_unavailable(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = FailingReads(monkeypatch)
    async with start() as server:
        await asyncio.to_thread(append, server.transport, "INBOX", message("First"), message("Second"))
        first, _ = _files(server, "messages")
        reads.fail(first, errno.EACCES)
        client = await server.login(ADA)
        await client.ok("SELECT INBOX")
        await _unavailable(client, "FETCH 1 (BODY.PEEK[])")
        _, status = await client.run("SEARCH BODY Hello")
        assert status.startswith(b"NO [UNAVAILABLE]")
        envelopes = await client.ok("FETCH 1:2 (FLAGS ENVELOPE)")
        assert len(envelopes) == 2
        untagged, status = await client.run("FETCH 1:2 (BODY.PEEK[])")
        assert status.startswith(b"NO [UNAVAILABLE]")
        assert len(untagged) == 1, "the other message is sent"
        await client.close()


async def test_recorded_loss_of_a_part_is_served_with_a_placeholder(start: Start) -> None:
    octets = message("First", attachments=[_LARGE, b"kept"])
    async with start() as server:
        await asyncio.to_thread(append, server.transport, "INBOX", octets)
        client = await server.login(ADA)
        await client.ok("SELECT INBOX")
        structure = await client.ok("FETCH 1 (RFC822.SIZE ENVELOPE BODYSTRUCTURE)")
        kept = await client.ok("FETCH 1 (BODY.PEEK[1] BODY.PEEK[3])")
        blob = max(_files(server, "attachments"), key=lambda path: path.stat().st_size)
        blob.unlink()
        ((message_id,),) = server.transport.index.query("SELECT message_id FROM messages", ())
        await asyncio.to_thread(server.transport.run, Emit((MarkDamaged(message_id, blob.name),)))
        await client.ok("UNSELECT")
        await client.ok("SELECT INBOX")
        assert await client.ok("FETCH 1 (RFC822.SIZE ENVELOPE BODYSTRUCTURE)") == structure
        assert await client.ok("FETCH 1 (BODY.PEEK[1] BODY.PEEK[3])") == kept
        (whole,) = await client.ok("FETCH 1 (BODY.PEEK[])")
        assert b"BODY[] {%d}" % len(octets) in whole
        (part,) = await client.ok("FETCH 1 (BINARY.PEEK[2])")
        assert b"This part of the message was lost" in part
        await client.close()
