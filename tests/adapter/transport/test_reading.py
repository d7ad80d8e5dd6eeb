"""Reading stored content: whole, in ranges and by section, with and without the index's caches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.mime.parser import scan
from protocol.mime.sections import parse_section, section_bytes
from tests.support.messages import message
from tests.support.stores import ADA, BOB, deliver, new_store

PICTURE = bytes(range(256)) * 2000
OCTETS = {
    "plain": message(body="Grüße aus der Engine\r\n" * 50),
    "parts": message(attachments=[b"one" * 500, PICTURE]),
    "ugly": b"Subject: \xff\x00\n\nbare\rlines\n\x00",
    "empty": b"",
}
SECTIONS = ["", "HEADER", "TEXT", "1", "2", "1.MIME", "3.MIME", "2.HEADER", "9", "HEADER.FIELDS (Subject To)",
            "HEADER.FIELDS.NOT (Subject Date)", "HEADER.FIELDS (X-Nothing)"]  # fmt: skip


def ids_of(store: Transport) -> dict[str, str]:
    return {name: deliver(store, ADA, octets=octets).message_id for name, octets in OCTETS.items()}


def forget_caches(store: Transport) -> None:
    store.index.writer.execute("DELETE FROM cache_messages")


@pytest.mark.parametrize("cached", [True, False])
def test_octets_are_read_back_unchanged(store: Transport, cached: bool) -> None:
    ids = ids_of(store)
    if not cached:
        forget_caches(store)
    for name, message_id in ids.items():
        assert store.content.octets(message_id) == OCTETS[name]
        assert b"".join(store.content.stream(message_id)) == OCTETS[name]


def test_streamed_range_equals_the_range_of_the_octets(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", ADA, BOB) as store:
        ids = ids_of(store)

        @given(st.sampled_from(sorted(OCTETS)), st.integers(0, 800_000), st.integers(0, 800_000))
        def holds(name: str, one: int, two: int) -> None:
            octets = OCTETS[name]
            start, stop = sorted((one % (len(octets) + 1), two % (len(octets) + 1)))
            assert b"".join(store.content.stream(ids[name], start, stop)) == octets[start:stop]

        holds()


def test_stream_chunks_are_bounded(store: Transport) -> None:
    message_id = ids_of(store)["parts"]
    assert max(len(chunk) for chunk in store.content.stream(message_id)) <= 256 << 10


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("spec", SECTIONS)
def test_sections_equal_those_of_the_octets(store: Transport, spec: str, cached: bool) -> None:
    section = parse_section(spec.encode())
    for name, message_id in ids_of(store).items():
        if not cached:
            forget_caches(store)
        octets = OCTETS[name]
        content = store.content.section(message_id, section)
        if isinstance(content, list):
            content = b"".join(b"".join(store.content.stream(message_id, *span)) for span in content)
        assert content == section_bytes(octets, scan(octets), section), name


def test_a_large_message_is_not_read_whole_for_a_small_section(
    store: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    octets = message(attachments=[PICTURE, os.urandom(2_000_000)])
    message_id = deliver(store, ADA, octets=octets).message_id
    read: list[int] = []
    pread = os.pread

    def recording(fd: int, length: int, offset: int) -> bytes:
        read.append(length)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", recording)
    header = store.content.section(message_id, parse_section(b"HEADER.FIELDS (Subject)"))
    assert header == b"Subject: Hello\r\n\r\n"
    spans = store.content.section(message_id, parse_section(b"1"))
    assert isinstance(spans, list)
    assert b"".join(store.content.stream(message_id, *spans[0])) == b"Hello Ada.\r\n"
    assert sum(read) < 10_000


@pytest.mark.parametrize("message_id", ["", "x", "../../etc/passwd", "msg-20260101T000000Z-" + "0" * 20])
def test_reading_a_missing_message_fails_with_no_such_message(store: Transport, message_id: str) -> None:
    for read in (store.content.octets, store.content.file, store.content.recipe, store.content.stream):
        with pytest.raises(MailError) as caught:
            read(message_id)
        assert caught.value.reason is Reason.NO_SUCH_MESSAGE


def test_reading_a_missing_blob_fails_with_no_such_message(store: Transport) -> None:
    for sha256 in ("0" * 64, "../../../etc/passwd"):
        with pytest.raises(MailError) as caught:
            store.content.read(sha256, 0, -1)
        assert caught.value.reason is Reason.NO_SUCH_MESSAGE


def test_content_is_not_read_through_a_planted_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    with new_store(tmp_path / "store", ADA) as store:
        message_id = deliver(store, ADA, octets=message(attachments=[PICTURE])).message_id
        (blob,) = [path for path in Path(store.root, "attachments").rglob("*") if path.is_file()]
        (file,) = Path(store.root, "messages").rglob("*.md")
        for place in (blob, file):
            place.unlink()
            place.symlink_to(secret)
        with pytest.raises(MailError) as caught:
            store.content.file(message_id)
        assert caught.value.reason is Reason.NO_SUCH_MESSAGE
        with pytest.raises(MailError) as caught:
            store.content.read(blob.name, 0, -1)
        assert caught.value.reason is Reason.NO_SUCH_MESSAGE


def _link(place: Path) -> None:
    place.symlink_to("/etc/hostname")


SMALL = b"journaled" * 1000


@pytest.mark.parametrize(
    ("damage", "part"), [(_link, SMALL), (os.mkfifo, PICTURE), (Path.mkdir, SMALL), (Path.touch, PICTURE)]
)
def test_damaged_blob_is_replaced_when_it_is_delivered_again(
    tmp_path: Path, damage: Callable[[Path], None], part: bytes
) -> None:
    octets = message(attachments=[part])
    with new_store(tmp_path / "store", ADA) as store:
        first = deliver(store, ADA, octets=octets).message_id
        (blob,) = [path for path in Path(store.root, "attachments").rglob("*") if path.is_file()]
        blob.unlink()
        damage(blob)
        with pytest.raises(MailError):
            store.content.octets(first)
        second = deliver(store, ADA, octets=octets).message_id
        assert store.content.octets(second) == octets
        assert store.content.octets(first) == octets
        assert len(list(Path(store.root, "maintenance", "quarantine").iterdir())) == 1


def test_readers_do_not_block_writers(store: Transport) -> None:
    """A writer commits at once between two reads; a reading block sees one state."""
    deliver(store, ADA)
    with store.reading() as connection:
        before = connection.execute("SELECT count(*) FROM messages").fetchall()
    deliver(store, ADA)
    with store.reading() as connection:
        after = connection.execute("SELECT count(*) FROM messages").fetchall()
        assert connection.execute("SELECT count(*) FROM messages").fetchall() == after
    assert (before, after) == ([(1,)], [(2,)])


def test_a_reader_cannot_write(store: Transport) -> None:
    import sqlite3

    with store.reading() as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM messages")
